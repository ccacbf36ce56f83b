"""metrics.jsonl as columns, as strict as the reader of events; windows of a curve by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
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
from rlhf_cli.runs.metrics_file import read_metrics
from rlhf_cli.runs.run_status import read_status, run_result
from rlhf_cli.runs.tracking.mirror import final_values
from rlhf_cli.runs.tracking.tracked_run import shown_name
from tests.support.logged_runs import write_run


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
    unwanted = columns_of(events, lambda name: False)
    for columns, names, facts in (
        (columns_from(*events), ["a", "b"], (4, 9)),
        (unwanted, [], (4, 9)),
        (MetricColumns(), [], (0, 0)),
    ):
        assert (list(columns), (columns.num_events, columns.last_step)) == (names, facts)


def curve(*values: float) -> Series:
    return Series(np.arange(1, len(values) + 1), np.array(values, dtype=float))


@pytest.mark.parametrize(
    ("window", "values", "mean"),
    [
        (Window(), range(20), 18.5),
        (Window(), (1, 2, 4), 4),
        (Window("first"), range(20), 0.5),
        (Window("last", 2), (1, 2, 4), 3),
        # A convolution with more ones than events has as many values as the ones.
        *((Window(kind, 99), (1, 2, 6), 3) for kind in ("last", "first", "best")),
        (Window("best", 2), (1, 2, 4, 1, 0), 3),  # running means of two: 1.5, 3, 2.5, 0.5
        (Window("best"), [0] * 15 + [1] + [0] * 14, pytest.approx(1 / 3)),  # one lucky event of thirty (width 3)
        # The mean of ones is exactly 1, as `at_least: 1` expects; six times a sixth is less in floats.
        *((Window("best", width), [1] * 50, 1) for width in (6, 7, 10, 24, 38)),
        # A null counts for the width; a stretch with one is no stretch, and without a whole one the best event counts.
        (Window("last", 2), (1, 2, 4, math.nan), 4),
        (Window("last", 1), (1, math.nan), pytest.approx(math.nan, nan_ok=True)),
        (Window(), (), pytest.approx(math.nan, nan_ok=True)),
        (Window("best", 2), (-4, -2, math.nan, -3, -3), -3),
        (Window("best", 2), (1, math.nan, 2), 2),
    ],
)
def test_a_window_is_a_tenth_of_the_events_or_as_many_as_are_asked_for(
    window: Window, values: Sequence[float], mean: Any
) -> None:
    assert window.of(curve(*values)) == mean


def test_of_a_loss_the_least_is_the_best() -> None:
    assert Window("best", 2).of(curve(1, 2, 4, 1, 0), more_is_better=False) == 0.5


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        *(([], None), ([3], (3, 3)), ([1, 2, 9], (1, 9))),
        *((range(19), (0, 18)), (range(20), (0.5, 18.5))),  # a tenth of 19 is one
        ([0, 3, 6] + [100] * 24 + [1, 2, 6], (3, 3)),  # three of thirty: 9/3 and 9/3
    ],
)
def test_start_and_end(values: Sequence[float], expected: tuple[float, float] | None) -> None:
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
