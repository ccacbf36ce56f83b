"""A run says at its end whether it came to what was expected of it, and is no less finished where it has not."""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path

import pytest
from rich.console import Console

from rlhf_cli.analysis.expectations import verify
from rlhf_cli.display.run_tables import at_the_end, show_verified
from rlhf_cli.runs.run_status import read_status
from tests.support.logged_runs import configured, write_run

RISING = [float(step) for step in range(1, 21)]


def printed(shown: Iterable[object]) -> str:
    console = Console(width=100, record=True, file=io.StringIO())
    for one in shown:
        console.print(one)
    return console.export_text()


def test_a_run_that_missed_is_finished_with_exit_code_0(train, capsys: pytest.CaptureFixture[str]) -> None:
    words = "expect=[{metric: correct, at_least: 2}, {metric: entropy, at_least: 0}]"
    code, folder = train(words)
    said = capsys.readouterr().out
    assert (code, read_status(folder).state) == (0, "finished")
    assert [one.state for one in verify(folder).outcomes] == ["missed", "met"]
    line = next(line for line in said.splitlines() if "missed:" in line and "correct" in line)
    assert "expected at least 2" in line
    assert "expected: 1 of 2 met" in said
    assert "typed" not in said  # what is expected was typed as well


def test_what_was_typed_is_named_only_where_something_is_missed(tmp_path: Path) -> None:
    met = configured(expect=[{"metric": "correct", "at_least": 1}])
    run = write_run(tmp_path / "run", met, {"rewards/correct/mean": [*RISING]})
    assert "typed" not in printed(at_the_end(verify(run), ["trainer.args.max_steps=20"]))
    missed = configured(expect=[{"metric": "correct", "at_least": 21}])
    other = write_run(tmp_path / "other", missed, {"rewards/correct/mean": [*RISING]})
    text = " ".join(printed(at_the_end(verify(other), ["+exp=quickstart", "seed=3", "a.b=1"])).split())
    assert "a.b=1 was typed" in text
    assert "seed" not in text
    text = printed(at_the_end(verify(other), [f"a.b{number}=1" for number in range(9)]))
    assert "a.b0=1, a.b1=1 and 7 more were typed" in " ".join(text.split())
    text = printed(at_the_end(verify(other), ["++a.b=1", "++expect=[{metric: correct, at_least: 21}]"]))
    assert "expected: 0 of 1 met" in text
    assert "typed" not in text


def test_several_runs_are_counted(tmp_path: Path) -> None:
    runs = [
        write_run(tmp_path / name, configured(expect=expect), {"rewards/correct/mean": [*RISING]}, state=state)
        for name, expect, state in (
            ("one", [{"metric": "correct", "at_least": 1}], "finished"),
            ("two", [{"metric": "correct", "at_least": 21}], "finished"),
            ("three", [{"metric": "correct", "at_least": 1}], "running"),
            ("four", None, "finished"),
        )
    ]
    console = Console(width=100, record=True, file=io.StringIO())
    show_verified(console, [verify(run) for run in runs])
    text = console.export_text()
    assert "4 runs: 1 met, 1 missed, 1 open, 1 expects nothing" in text
    assert "four expects nothing" in text.replace(str(tmp_path) + "/", "")
    assert "the run is at step 20" in text
