"""Runs side by side, as a person reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_status import Status
from rlhf_cli.runs.run_summary import RunSummary
from rlhf_cli.screen.comparison_table import show_comparison
from tests.support.terminal import printed


def summary(
    place: Path, name: str, state: str = "finished", *, began_with: str | None = None, **settings: Any
) -> RunSummary:
    return RunSummary(
        folder=RunFolder(place / "runs" / "sums" / name),
        status=Status(state),
        settings={key.replace("__", "."): value for key, value in settings.items()},
        rewards={"reward": (0.25, 0.75), "correct": (0.0, 0.5)},
        measures={},
        starting_model=began_with,
    )


def test_few_differences_are_columns(place: Path) -> None:
    runs = [summary(place, "one", seed=0, a__lr=0.1), summary(place, "two", "failed", seed=0, a__lr=0.2)]
    runs[1].rewards.pop("correct")
    assert printed(lambda console: show_comparison(console, runs)) == [
        "runs/sums/",
        "# run state    a.lr       total     correct",
        "0 one finished  0.1 0.250→0.750 0.000→0.500",
        "1 two failed    0.2 0.250→0.750           -",
        "start→end: mean over the first and last tenth of the log events; rewards are",
        "raw, the total is gated, weighted and aggregated",
    ]


def test_many_differences_are_lines(place: Path) -> None:
    runs = [
        summary(place, str(number), seed=number, lr=0.1 if number else 0.2, beta=number, model="x", steps=number // 2)
        for number in range(3)
    ]
    lines = printed(lambda console: show_comparison(console, runs))
    assert lines[1].split() == ["#", "run", "state", "total", "correct"]
    place_of = lines.index("what differs")
    assert lines[place_of + 1 : place_of + 5] == [
        "seed   0 (#0)   1 (#1)   2 (#2)",
        "lr     0.2 (#0)   0.1 (the others)",
        "beta   0 (#0)   1 (#1)   2 (#2)",
        "steps  0 (the others)   1 (#2)",
    ]


def test_equal_runs(place: Path) -> None:
    lines = printed(lambda console: show_comparison(console, [summary(place, "one"), summary(place, "two")]))
    assert "the configurations do not differ" in lines


def test_the_same_name_and_other_weights(place: Path) -> None:
    """A warm start on another machine, a branch that moved on the hub: nothing in the configurations shows it."""
    began = ["a" * 64, "b" * 64, "a" * 64, None]
    runs = [summary(place, str(number), began_with=model) for number, model in enumerate(began)]
    said = " ".join(printed(lambda console: show_comparison(console, runs)))
    assert "the same model by name, but they began with different weights" in said
    assert "weights: aaaaaaaaaaaa (#0 #2), bbbbbbbbbbbb (#1)" in said


def test_other_weights_that_were_asked_for(place: Path) -> None:
    runs = [summary(place, one, began_with=one * 64, model__build__seed=one) for one in "ab"]
    said = " ".join(printed(lambda console: show_comparison(console, runs)))
    assert "they began with different weights" in said
    assert "by name" not in said


def test_the_same_weights_need_no_word(place: Path) -> None:
    runs = [summary(place, name, began_with="a" * 64) for name in ("one", "two")]
    assert "weights" not in " ".join(printed(lambda console: show_comparison(console, runs)))
