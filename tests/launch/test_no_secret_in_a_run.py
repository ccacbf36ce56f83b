"""A run that got secrets in every way shows no secret in its folder or at the terminal.

The negative control is the same run with the redaction switched off: the search then finds every one of them.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rlhf_cli.cli import main
from rlhf_cli.config import compose, validate
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_status import FAILED, FINISHED, read_status
from rlhf_cli.text import redaction
from tests.support.planted_secrets import NEEDLES, WORDS, plant, tellers

pytestmark = pytest.mark.whole

RUNS = Path("runs/quickstart")


@pytest.fixture
def told(workplace: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):
    """`told(words)`: run a command with the secrets in the environment; returns its exit code and what it printed."""
    plant(workplace, monkeypatch)

    def run(verb: str, *words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["rlhf", verb, *words])
        code = main([verb, *words])
        printed = capfd.readouterr()
        return code, printed.out + printed.err

    return run


@pytest.fixture
def switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "_forms", lambda values: [])
    monkeypatch.setattr(redaction, "_SHAPES", {})
    monkeypatch.setattr(redaction, "_IN_TEXT", ())
    monkeypatch.setattr(redaction, "_is_hidden_by_key", lambda key, value: False)
    monkeypatch.setattr(compose, "references_of", lambda config: {})
    monkeypatch.setattr(validate, "is_secret_key", lambda name: False)
    monkeypatch.setattr(validate, "secret_in", lambda text: None)


@pytest.mark.fault(48)
def test_a_run_and_one_that_fails_tell_nothing_and_it_goes_on_with_what_the_shell_has_now(
    told, workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, printed = told("train", *WORDS, "run.name=good")
    assert code == 0, printed
    assert "asking *** with *** ***" in printed
    assert read_status(RunFolder(RUNS / "good")).state == FINISHED
    code, failed = told("train", *WORDS, "run.name=bad", "rewards.told.args.fails_at=2")
    assert code == 1
    assert "RuntimeError: asking *** with ***" in failed
    assert read_status(RunFolder(RUNS / "bad")).state == FAILED
    assert (RUNS / "bad" / "checkpoints" / "checkpoint-1" / "training_args.bin").is_file()
    assert (RUNS / "bad" / "failure-rank0.json").is_file()
    assert (RUNS / "bad" / "reward_errors.jsonl").is_file()
    assert tellers(workplace / RUNS) == {}
    assert [needle for needle in NEEDLES if needle in printed + failed] == []
    monkeypatch.delenv("JUDGE_KEY")
    code, printed = told("resume", str(RUNS / "bad"))
    assert code == 2
    assert "the environment variable JUDGE_KEY is not set" in printed
    assert "rewards.told.args.api_key" in printed
    monkeypatch.setenv("JUDGE_KEY", "another-key-77")
    Path("mended").touch()
    code, printed = told("resume", str(RUNS / "bad"))
    assert code == 0, printed
    assert Path("key").read_text() == "another-key-77"
    assert tellers(workplace / RUNS, (*NEEDLES, "another-key-77")) == {}


@pytest.mark.usefixtures("switched_off")
@pytest.mark.fault(48)
def test_negative_control_the_search_finds_every_one(told, workplace: Path) -> None:
    code, printed = told("train", *WORDS, "run.name=bad", "rewards.told.args.fails_at=2")
    assert code == 1, printed
    found = tellers(workplace / RUNS)
    assert set(found) == set(NEEDLES)
    kinds = ("config.yaml", "log.txt", "failure-rank0.json", "reward_errors.jsonl", "status.json")
    written = set().union(*found.values())
    assert {f"bad/{kind}" for kind in kinds} <= written
    for ending in (".parquet", ".table.json", "training_args.bin", ".wandb", "debug.log"):
        assert any(name.endswith(ending) for name in written), ending
    assert [needle for needle in ("hf_planted0123456789", "judgekey-planted88", "judgepassw99") if needle in printed]


def test_show_and_check_tell_nothing(told) -> None:
    for verb in ("show", "check"):
        code, printed = told(verb, *WORDS)
        assert code == 0
        assert [needle for needle in NEEDLES if needle in printed] == []
    assert "api_key: ${oc.env:JUDGE_KEY}" in told("show", *WORDS)[1]


@pytest.mark.fault(48)
def test_a_sweep_tells_nothing(told, workplace: Path) -> None:
    """A job is another process: it gets its environment, and the command that was typed, by a pipe."""
    code, printed = told("train", "-m", *WORDS, "run.name=swept", "seed=3,4")
    assert code == 0, printed
    assert len(list((RUNS / "swept").glob("*/config.yaml"))) == 2
    assert tellers(workplace / RUNS) == {}
    assert [needle for needle in NEEDLES if needle in printed] == []
