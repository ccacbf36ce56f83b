"""metrics.jsonl as columns, as strict as the reader of events; windows of a curve by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlhf_cli.analysis.comparison.logged_run import read_runs
from rlhf_cli.analysis.comparison.measures import RunMeasure
from rlhf_cli.analysis.verification import outcomes_of
from rlhf_cli.config.schema.run_sections import read_expectations
from rlhf_cli.display.sweep_progress import JobProgress
from rlhf_cli.errors import UserError
from rlhf_cli.runs.metric_arrays import (
    MetricColumns,
    Series,
    Window,
    columns_of,
    parse_window,
    read_columns,
    start_and_end,
)
from rlhf_cli.runs.metrics_file import read_metrics, series
from rlhf_cli.runs.run_status import read_status, run_result
from rlhf_cli.runs.tracking.mirror import final_values
from rlhf_cli.runs.tracking.tracked_run import shown_name
from tests.support.logged_runs import write_run

EVENTS = [
    {"step": 1, "time_s": 0.5, "loss": 0.5, "reward": 1},
    {"step": 2, "time_s": 1.0, "loss": None, "reward": 0.25, "late": 3.0, "name": "0.5"},
    {"step": 2, "time_s": 1.0, "eval_loss": 0.75},
]


def write(place: Path, text: str | bytes) -> Path:
    file = place / "metrics.jsonl"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


@pytest.fixture
def whole() -> str:
    return "".join(json.dumps(event) + "\n" for event in EVENTS)


def test_columns_equal_the_events(tmp_path: Path, whole: str) -> None:
    file = write(tmp_path, whole)
    columns = read_columns(file)
    assert list(columns) == ["loss", "reward", "late", "eval_loss"]
    for name in ("reward", "late", "eval_loss"):
        found = columns.series(name)
        assert (list(found.steps), list(found.values)) == series(read_metrics(file), name)
    assert (columns.num_events, columns.last_step) == (3, 2)


def columns_from(*events: dict[str, Any]) -> MetricColumns:
    return columns_of([{"time_s": 1.0, **event} for event in events])


def test_other_values_than_numbers_and_null_are_left_out() -> None:
    """A text, a bool, a list; the number beside it in the same event counts."""
    odd = ("x", True, [1], {"a": 1})
    columns = columns_from(*({"step": step, "a": value, "b": step} for step, value in enumerate((0.5, *odd, None, 2))))
    assert list(columns.series("a").steps) == [0, 5, 6]
    assert list(columns.series("a").values) == pytest.approx([0.5, math.nan, 2.0], nan_ok=True)
    assert list(columns.series("b").values) == list(range(7))
    assert list(columns_from({"step": 1, "a": "x"})) == []


def test_counts_and_the_last_step_are_those_of_all_events() -> None:
    """Neither their order nor the wanted metrics matter."""
    events: list[dict[str, Any]] = [{"step": 2, "a": 1}, {"step": 9.0, "b": 1}, {"step": 3, "a": 1}, {"step": 5}]
    assert (columns_from(*events).num_events, columns_from(*events).last_step) == (4, 9)
    unwanted = columns_of(events, lambda name: False)
    assert (list(unwanted), unwanted.num_events, unwanted.last_step) == ([], 4, 9)
    nothing = columns_of([])
    assert (list(nothing), nothing.num_events, nothing.last_step) == ([], 0, 0)
    assert (MetricColumns().num_events, MetricColumns().last_step) == (0, 0)


def curve(*values: float) -> Series:
    return Series(np.arange(1, len(values) + 1), np.array(values, dtype=float))


def test_a_window_is_a_tenth_of_the_events_and_at_least_one_or_as_many_as_are_asked_for() -> None:
    assert Window().of(curve(*range(20))) == 18.5
    assert Window().of(curve(1.0, 2.0, 4.0)) == 4.0
    assert Window("first").of(curve(*range(20))) == 0.5
    assert Window("last", 2).of(curve(1.0, 2.0, 4.0)) == 3.0
    for kind in ("last", "first", "best"):  # a convolution with more ones than events has as many values as the ones
        assert Window(kind, 99).of(curve(1.0, 2.0, 6.0)) == 3.0


def test_the_best_stretch_is_the_best_running_mean() -> None:
    """Running means of two: 1.5, 3, 2.5, 0.5. One lucky event of 30 in thirty (width 3) is worth a third of it."""
    noisy = curve(1.0, 2.0, 4.0, 1.0, 0.0)
    assert Window("best", 2).of(noisy) == 3.0
    assert Window("best", 2).of(noisy, more_is_better=False) == 0.5
    assert Window("best").of(curve(*[0.0] * 15, 1.0, *[0.0] * 14)) == pytest.approx(1 / 3)


@pytest.mark.parametrize("width", [6, 7, 10, 24, 38])
def test_a_stretch_of_ones_is_one(width: int) -> None:
    """The mean of ones is exactly 1, as `at_least: 1` expects; six times a sixth is less in floats."""
    assert Window("best", width).of(curve(*[1.0] * 50)) == 1.0


def test_a_null_counts_for_the_width_of_a_window() -> None:
    """Of four events the last two: null and 4. Of -4, -2, null, -3, -3 the means of two are -3 and -3 beside those with
    a null, which are not 0 and not -2.
    """
    assert Window("last", 2).of(curve(1.0, 2.0, 4.0, math.nan)) == 4.0
    assert math.isnan(Window("last", 1).of(curve(1.0, math.nan)))
    assert math.isnan(Window().of(curve()))
    assert Window("best", 2).of(curve(-4.0, -2.0, math.nan, -3.0, -3.0)) == -3.0
    assert Window("best", 2).of(curve(1.0, math.nan, 2.0)) == 2.0  # no stretch is whole: the best event


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        *(([], None), ([3.0], (3.0, 3.0)), ([1.0, 2.0, 9.0], (1.0, 9.0))),
        *(([float(value) for value in range(count)], (0.0, count - 1)) for count in (10, 19)),  # a tenth of 19 is one
        ([float(value) for value in range(20)], (0.5, 18.5)),  # the first two, the last two
        ([0.0, 3.0, 6.0] + [100.0] * 24 + [1.0, 2.0, 6.0], (3.0, 3.0)),  # three of thirty: 9/3 and 9/3
    ],
)
def test_start_and_end(values: list[float], expected: tuple[float, float] | None) -> None:
    assert start_and_end(curve(*values)) == expected


def test_every_screen_counts_nulls_in_the_width_of_a_curves_end(tmp_path: Path) -> None:
    """Of twenty events the last two: 4 and null. An evaluation counts by its last number."""
    curves = {"rewards/a/mean": [*[1.0] * 17, 2.0, 4.0, None], "eval_loss": [*[2.0] * 18, 3.0, None]}
    run = write_run(tmp_path / "run", {}, curves)
    job = JobProgress(name="run", folder=run)
    job.ends(read_status(run))
    final = final_values(read_metrics(run.metrics))
    for name, end in (("rewards/a/mean", 4.0), ("eval_loss", 3.0)):
        compared = RunMeasure("x", name, "asked").of(read_runs([run])[0][0], Window())
        expected = read_expectations({"x": {"metric": name, "at_least": 0}})
        (outcome,) = outcomes_of(expected, read_columns(run.metrics), (), is_finished=True)
        assert [compared, outcome.value, job.value_of(name), final[f"final/{shown_name(name)}"]] == [end] * 4
    assert run_result(run)["rewards"] == {"a": {"start": 1.0, "end": 4.0}}


def test_typed_windows() -> None:
    assert (parse_window("last"), parse_window("last-20")) == (Window(), Window("last", 20))
    assert (str(Window()), Window().in_words) == ("last", "mean of the last tenth of the log events")
    assert (str(Window("last", 2)), Window("last", 2).in_words) == ("last-2", "mean of the last 2 log events")
    for typed in ("last-0", "tenth", "last-x", "", "best"):
        with pytest.raises(UserError) as caught:
            parse_window(typed)
        assert (caught.value.where, caught.value.hint) == ("--window", "--window last-20")
