"""What goes into a pipe holds no blanks that only fill a terminal, and each hint once; a wait has a sign of life."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from tqdm import tqdm

from rlhf_cli.cli import main
from rlhf_cli.display import terminal
from rlhf_cli.display.terminal import spinner
from tests.support.logged_runs import configured, write_run, write_sweep

CLIMBING_KL = {"reward": [0.5] * 40, "rewards/correct/mean": [0.5] * 40, "kl": [0.1 * step for step in range(40)]}


@pytest.mark.parametrize(
    "words", [["why", "runs/exp/one"], ["why", "runs"], ["compare", "runs"], ["status", "runs"], ["list"]], ids=" ".join
)
def test_no_line_in_a_pipe_ends_in_blanks(place: Path, capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    write_run(place / "runs" / "exp" / "one", configured(), CLIMBING_KL)
    write_sweep(place / "runs" / "exp" / "sweep", {0.0: [0.5, 0.6], 0.5: [0.75, 0.7]})
    main(words)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 1
    assert [line for line in lines if line != line.rstrip()] == []


def test_how_to_silence_a_finding_is_said_once(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    curves = {**CLIMBING_KL, "rewards/brevity/mean": [0.0] * 40, "rewards/brevity/std": [0.0] * 40}
    curves |= {"frac_reward_zero_std": [1.0] * 40, "entropy": [2.0 - 0.05 * step for step in range(40)]}
    write_run(place / "runs" / "exp" / "one", configured(), curves)
    main(["why", "runs/exp/one"])
    said = capsys.readouterr().out
    assert said.count("kind     ") > 1, "several findings"
    assert said.count("warn.KIND=off") == 1


def test_a_pipe_is_told_what_takes_long(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "_QUIET_S", 0.01)
    with spinner("importing torch") as show:
        show("loading ./big-model")
        deadline = time.monotonic() + 60
        while not (said := capsys.readouterr().out) and time.monotonic() < deadline:
            time.sleep(0.01)
    assert "loading ./big-model ..." in said.splitlines()


def test_a_wait_shows_how_far_the_bar_of_a_library_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bar of its own would begin a line at every step, below a spinner at a terminal."""
    monkeypatch.setattr(terminal, "_QUIET_S", 0.01)
    with spinner("importing torch"):
        print("a warning", file=sys.stderr)
        for _ in tqdm(range(4), desc="Tokenizing", mininterval=0):
            time.sleep(0.1)
    said = capsys.readouterr()
    assert "Tokenizing 2/4 ..." in said.out.splitlines()
    assert said.err == "a warning\n"


@pytest.mark.parametrize(("quiet_s", "shown"), [(30.0, True), (0.01, False)])
def test_what_is_quick_or_hidden_prints_nothing(
    quiet_s: float, shown: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal, "_QUIET_S", quiet_s)
    with spinner("importing torch", shown=shown):
        time.sleep(0.1)
    assert capsys.readouterr().out == ""


_FIRST_SPINNER = """
import sys
from rlhf_cli.cli import main
from rlhf_cli.display import terminal

def spinner(doing, **_):
    print(doing, "after", *{"torch", "transformers"} & {*sys.modules})
    sys.exit()

terminal.spinner = spinner
main(sys.argv[1:])
"""


@pytest.mark.parametrize("typed", ["train +exp=quickstart track=none", "check +exp=quickstart --rows 1"])
def test_a_screen_that_waits_for_imports_says_so(typed: str, place: Path) -> None:
    """torch and transformers take many seconds to import on a busy machine; the first spinner begins before them."""
    done = subprocess.run([sys.executable, "-c", _FIRST_SPINNER, *typed.split()], capture_output=True, text=True)
    doing, _, imported = done.stdout.splitlines()[-1].partition(" after")
    assert doing.startswith("importing")
    assert imported == ""
