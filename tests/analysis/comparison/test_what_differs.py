"""Runs are named by what differs, and gathered over their seeds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlhf_cli.analysis.comparison.logged_run import LoggedRun, differences, read_runs, value_text
from rlhf_cli.analysis.comparison.settings import group_over_seeds
from rlhf_cli.runs.run_folder import write_json
from tests.support.logged_runs import configured, write_run

FLAT = {"reward": [0.5, 0.5]}


def read(place: Path, *configs: Any, **named: Any) -> list[LoggedRun]:
    folders = [write_run(place / "runs" / str(number), one, FLAT, **named) for number, one in enumerate(configs)]
    return read_runs(folders)[0]


def names(runs: list[LoggedRun]) -> list[str]:
    return [run.name for run in runs]


def test_what_differs_names_a_run_and_seeds_come_last(place: Path) -> None:
    assert names(read(place, configured(0.0, 2), configured(0.5, 2), configured(0.5, 1))) == [
        *("weight=0,seed=2", "weight=0.5,seed=2", "weight=0.5,seed=1")
    ]


def test_a_key_is_as_long_as_tells_it_from_the_others(place: Path) -> None:
    other = configured(0.5)
    other["rewards"]["correct"]["weight"] = 2.0  # type: ignore[index, call-overload]
    third = configured(0.5)
    assert names(read(place, configured(), other, third)) == [
        "correct.weight=1,brevity.weight=0",
        "correct.weight=2,brevity.weight=0.5",
        "correct.weight=1,brevity.weight=0.5",
    ]


def test_what_changes_nothing_of_the_training_is_no_difference(place: Path) -> None:
    """Where a run lies, what is tracked and how often it is saved: tables/resume_keys.py says which keys these are."""
    saving = configured(track={"mode": "none"})
    saving["trainer"]["args"]["save_steps"] = 5  # type: ignore[index, call-overload]
    runs = read(place, configured(track={"mode": "online"}), saving, configured(0.0, 0, run={"name": "x"}))
    assert differences(runs) == []
    assert names(runs) == ["0", "1", "2"]


def test_runs_that_differ_in_nothing_are_told_by_their_folders(place: Path) -> None:
    assert names(read(place, configured(), configured(0.5), configured(0.5))) == [
        *("weight=0", "weight=0.5 (1)", "weight=0.5 (2)")
    ]


def test_all_seeds_are_seeds(place: Path) -> None:
    """A starting model drawn with the seed is no setting of its own; one that is drawn alone is a seed, too."""
    runs = read(place, *(configured(0.0, seed, model={"build": {"seed": seed}}) for seed in (0, 1)))
    (setting,) = group_over_seeds(runs).settings
    assert list(setting.by_seed) == ["0", "1"]
    crossed = [configured(0.0, a, model={"build": {"seed": b}}) for a in (0, 1) for b in (0, 1)]
    (setting,) = group_over_seeds(read(place / "crossed", *crossed)).settings
    assert list(setting.by_seed) == ["0/0", "0/1", "1/0", "1/1"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((0.0, "0"), (0.5, "0.5"), (1e-06, "1e-06"), (None, "none"), (True, "true"), (3, "3")),
        *(([1, None], "[1,none]"), ("/a/b/model", "model"), ("x/y", "x/y")),
    ],
)
def test_a_value_is_said_as_it_is_typed(value: object, text: str) -> None:
    assert value_text(value) == text


def test_what_a_search_set_stays_apart(place: Path) -> None:
    """Every trial has another value of both weights, so that either would tell the trials apart."""
    folders = []
    for number, (correct, brevity) in enumerate([(0.8473095986776095, 1.25), (1.2055267521432877, 0.5)]):
        one = configured(brevity)
        one["rewards"]["correct"]["weight"] = correct  # type: ignore[index, call-overload]
        folders.append(write_run(place / "search" / str(number), one, FLAT))
    write_json(place / "search" / "sweep.json", {"swept": ["rewards.correct.weight", "rewards.brevity.weight"]})
    assert names(read_runs(folders)[0]) == [
        "correct.weight=0.84731,brevity.weight=1.25",
        "correct.weight=1.20553,brevity.weight=0.5",
    ]
