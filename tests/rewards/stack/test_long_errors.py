"""What a reward raises may be of any length, and may have no message: the reward is named, in few words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlhf_cli.cli import main
from rlhf_cli.errors import described, in_a_line, message_of, shortened
from rlhf_cli.text.terminal_output import traceback_of

LONG = 3_000_000
MINE = f"""
class Unprintable(RuntimeError):
    def __str__(self):
        raise RuntimeError("no str")


def long(completions, **columns):
    raise ValueError("begin" + "x" * {LONG} + "the end")


def unprintable(completions, **columns):
    raise Unprintable


def leaves(completions, **columns):
    raise SystemExit("x" * {LONG})
"""


def test_a_text_is_cut_in_the_middle() -> None:
    assert shortened("short") == "short"
    cut = shortened("begin" + "x" * 10_000 + "the end", 100)
    assert cut.startswith("beginx")
    assert cut.endswith("xthe end")
    assert "[9912 characters left out]" in cut


def test_an_error_without_a_text_has_one() -> None:
    class Unprintable(Exception):
        def __str__(self) -> str:
            raise KeyError("no str")

    for text in (described(Unprintable()), in_a_line(Unprintable()), traceback_of(Unprintable())):
        assert "Unprintable: " in text
    assert "KeyError" in message_of(Unprintable())


@pytest.mark.parametrize("isolate", [False, True])
@pytest.mark.parametrize("which", ["long", "unprintable", "leaves"])
def test_long_errors_are_shortened_and_name_the_reward(
    train, workplace: Path, capfd: pytest.CaptureFixture[str], which: str, isolate: bool
) -> None:
    (workplace / "mine.py").write_text(MINE)
    given = f"fn: './mine.py:{which}', weight: 1.0, trial: false, isolate: {str(isolate).lower()}"
    code, folder = train(f"++rewards.mine={{{given}}}")
    assert code == 1
    out, err = capfd.readouterr()
    assert "error: reward 'mine' " in err
    assert {"long": "the end", "unprintable": "no message", "leaves": "sys.exit"}[which] in err
    assert json.loads(folder.status.read_text())["reason"].startswith("reward 'mine' ")
    sizes = {file.name: file.stat().st_size for file in folder.path.iterdir() if file.is_file()}
    assert all(size < 100_000 for size in sizes.values()), sizes
    assert len(out) + len(err) < 60_000
    assert main(["status", folder.shown]) == 0
    assert len(capfd.readouterr().out) < 10_000
