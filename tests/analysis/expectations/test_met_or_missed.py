"""Outcomes of expectations on logs written by hand, and their lines at the end of a run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from rlhf_cli.analysis.verification import ExpectationOutcome, VerifiedRun, verify
from rlhf_cli.config.schema.run_sections import Expectation
from rlhf_cli.display.run_tables import at_the_end
from rlhf_cli.errors import RunError
from rlhf_cli.runs.run_folder import RunFolder, write_json
from rlhf_cli.runs.run_status import read_status
from rlhf_cli.sweeps.sweep_folder import show_expectations
from rlhf_cli.text.json_values import JsonValue
from tests.support.logged_runs import configured, write_run
from tests.support.terminal import drawn, printed

RISING = [float(step) for step in range(1, 21)]
"""The value at step n is n: a tenth of 20 log events are 2."""


def run_of(place: Path, *expected: JsonValue, state: str = "finished", **curves: list[float | None]) -> RunFolder:
    curves = curves or {"rewards/correct/mean": [*RISING]}
    return write_run(place / "run", configured(expect=list(expected)), curves, state=state)


def outcomes(place: Path, *expected: dict[str, JsonValue], state: str = "finished") -> Sequence[ExpectationOutcome]:
    """Return the outcomes of expectations of `correct`."""
    return verify(run_of(place, *({"metric": "correct", **one} for one in expected), state=state)).outcomes


def test_the_number_at_each_place(tmp_path: Path) -> None:
    """The means of (19, 20), (1, 2) and (17, 18, 19, 20); up to step 10 a tenth of the events is one."""
    places = {"end": 19.5, "first": 1.5, "last-4": 18.5, "best": 19.5, 10: 10.0, 20: 19.5}
    expected = [{"at": at, "at_least": value + more} for at, value in places.items() for more in (0.0, 1e-4)]
    found = outcomes(tmp_path, *expected)
    assert [one.value for one in found] == [value for value in places.values() for _ in range(2)]
    assert [one.state for one in found] == ["met", "missed"] * len(places)
    assert {one.metric for one in found} == {"rewards/correct/mean"}


def test_bounds(tmp_path: Path) -> None:
    """The rounding of float32 misses no expectation. With `at_most` the best is the lowest: (1 + 2) / 2."""
    rounded = {"at_least": 19.50001}, {"at_most": 19.49999}
    met = {"at_most": 19.5}, {"between": [19.5, 20]}, *rounded, {"at": "best", "at_most": 1.5}
    within = {"between": [19.6, 20]}, {"between": [0, 19.4]}
    missed = {"at_most": 19.4}, {"at_least": 19.5001}, *within, {"at": "best", "at_most": 1.4}
    assert [one.state for one in outcomes(tmp_path, *met, *missed)] == ["met"] * 5 + ["missed"] * 5


@pytest.mark.parametrize("state", ["running", "failed", "preempted"])
def test_later_expectations_are_open(tmp_path: Path, state: str) -> None:
    """A run that can still go on has missed nothing; what it has passed is known."""
    expected = {"at": "end", "at_least": 1}, {"at": 10, "at_least": 10}, {"at": 25, "at_least": 10}
    end, passed, to_come = outcomes(tmp_path / "before", *expected, state=state)
    assert (end.state, end.why, passed.state, to_come.state) == ("open", "the run is at step 20", "met", "open")
    (ended,) = outcomes(tmp_path / "after", {"at": 25, "at_least": 1})
    assert (ended.state, ended.why, math.isnan(ended.value)) == ("missed", "the run ended at step 20", True)


def test_what_was_never_logged_or_as_null_is_missed_and_the_nearest_named(tmp_path: Path) -> None:
    never: JsonValue = {"metric": "eval_los", "at_most": 5}
    run = run_of(tmp_path, never, {"metric": "loss", "at": "last-1", "at_most": 5}, eval_loss=[1.0], loss=[1.0, None])
    whys = [(one.state, one.why) for one in verify(run).outcomes]
    assert whys == [("missed", "it was never logged; eval_loss was"), ("missed", "it was logged as null")]
    late = run_of(tmp_path / "late", {"metric": "b", "at": 1, "at_most": 5}, a=[1.0, 1.0]).metrics
    late.write_text(late.read_text() + '{"step": 10, "time_s": 1, "b": 2}\n')
    (one,) = verify(RunFolder(late.parent)).outcomes
    assert (one.state, one.why) == ("missed", "it was first logged at step 10")


def test_evaluations_are_not_averaged(tmp_path: Path) -> None:
    """Of 30 evaluations `end` is the last, `best` the best and `first` the first, not means of three."""
    values: list[float | None] = [float(step) for step in range(1, 31)]
    expected = ({"metric": "eval_loss", "at": at, "at_most": 0} for at in ("end", "best", "first", 7, "last-2"))
    assert [one.value for one in verify(run_of(tmp_path, *expected, eval_loss=values)).outcomes] == [30, 1, 1, 7, 29.5]


def test_the_worst_of_a_run_is_its_state(tmp_path: Path) -> None:
    met, missed = {"metric": "correct", "at_least": 0}, {"metric": "correct", "at_least": 99}
    to_come = {"metric": "correct", "at_least": 0, "at": 25}
    assert verify(run_of(tmp_path / "1", met)).state == "met"
    assert verify(run_of(tmp_path / "2", met, missed)).state == "missed"
    assert verify(run_of(tmp_path / "3", {**met, "at": 3}, to_come, state="running")).state == "open"
    assert verify(run_of(tmp_path / "4")).state is None
    assert verify(run_of(tmp_path / "5", to_come, {**missed, "at": 3}, state="running")).state == "missed"


def test_a_configuration_that_was_edited_into_none(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="cannot be read") as caught:
        verify(run_of(tmp_path, {"metric": "correct"}))
    assert "one bound to compare with" in str(caught.value.expected)


def ending(verified: VerifiedRun) -> str:
    """Return the lines on expectations of a run's last screen as one text."""
    return " ".join(line for shown in at_the_end(verified) for line in drawn(shown, 200))


def test_a_run_that_missed_is_finished_with_exit_code_0(train, capsys: pytest.CaptureFixture[str]) -> None:
    words = "expect=[{metric: correct, at_least: 2}, {metric: entropy, at_least: 0}]"
    code, folder = train(words)
    said = capsys.readouterr().out
    assert (code, read_status(folder).state) == (0, "finished")
    assert [one.state for one in verify(folder).outcomes] == ["missed", "met"]
    line = next(line for line in said.splitlines() if "missed:" in line and "correct" in line)
    assert "expected at least 2" in line
    assert "expected: 1 of 2 met" in said


@pytest.mark.parametrize("word", ["trainer.args.max_steps=30", "++trainer.args.num_train_epochs=1"])
def test_a_run_whose_length_was_typed_is_not_judged(word: str, tmp_path: Path) -> None:
    run = run_of(tmp_path, {"metric": "correct", "at_least": 21})

    def said(*typed: str) -> str:
        return ending(replace(verify(run), typed=typed))

    assert (word.lstrip("+") in said("+exp=quickstart", word), "missed" in said(word)) == (True, False)
    key = word.partition("=")[0]
    assert f"because {key.lstrip('+')}=7 was typed" in said(word, f"{key}=7")  # at a resume
    assert "expected: 0 of 1 met" in said(word, "expect=[{metric: correct, at_least: 21}]"), "typed as well"
    assert verify(run).state == "missed", "rlhf verify judges every run"


SHORTER = {"trainer.args.max_steps": "trainer.args.max_steps: 50 -> 3"}


@pytest.mark.parametrize(
    ("changes", "judged"),
    [
        (SHORTER, False),
        ({**SHORTER, "expect": "expect: [] -> [...]"}, True),
        ({"trainer.args.save_steps": "trainer.args.save_steps: 5 -> 3"}, True),
    ],
)
def test_what_was_typed_at_a_resume_counts_as_typed_at_the_start(
    changes: dict[str, JsonValue], judged: bool, tmp_path: Path
) -> None:
    run = run_of(tmp_path, {"metric": "correct", "at_least": 21})
    write_json(run.provenance, {"overrides": ["+exp=quickstart"], "resumed": [1, {"step": 3, "changes": changes}]})
    said = ending(verify(run))
    assert (("expected: 0 of 1 met" in said), ("max_steps=3 was typed" in said)) == (judged, not judged)


def test_a_sweep_counts_the_misses_or_says_that_it_is_not_judged(tmp_path: Path) -> None:
    runs = [run_of(tmp_path / str(seed), {"metric": "correct", "at_least": 21}) for seed in range(5)]

    def shown(*words: str) -> list[str]:
        for run in runs:
            write_json(run.provenance, {"overrides": list(words)})
        return printed(lambda console: show_expectations(console, runs), 120)

    assert shown("+exp=quickstart", "seed=0,1") == ["expectations: 5 runs: 5 missed; rlhf verify lists them"]
    (line,) = shown("+exp=quickstart", "trainer.args.max_steps=30")
    assert line.endswith("trainer.args.max_steps=30 was typed")


@pytest.mark.parametrize(("at", "words"), [("last-24", "24 log events"), (3, "step 3"), ("end", "the end")])
def test_where_it_is_read_is_said_in_words(at: str | int, words: str) -> None:
    assert Expectation(metric="loss", at=at, at_most=1).place.endswith(words)
