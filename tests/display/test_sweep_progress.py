"""The table of a sweep: what matters most is what is shown, in any terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from rlhf_cli.display.sweep_progress import JobProgress, SweepDisplay
from rlhf_cli.display.terminal import sparkline
from rlhf_cli.runs.metric_arrays import columns_of
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_status import FINISHED, RUNNING, RunState
from tests.support.terminal import drawn

LONG = "a.weight=0.1,learning_rate=1e-5,truncation=bootstrap,seed={}"


def job(name: str, state: RunState, *values: float, step: int = 25, max_steps: int = 25, **more: Any) -> JobProgress:
    logged = columns_of({"step": place, "reward": value} for place, value in enumerate(values))
    said: dict[str, Any] = {"name": name, "folder": RunFolder(Path("runs", name)), "state": state, "began_at": 0.0}
    return JobProgress(**said, step=step, max_steps=max_steps, logged=logged, **more)


def jobs() -> list[JobProgress]:
    """Return 30 jobs that have ended, each after a second, 2 that run and 70 that wait."""
    ended = [job(f"seed={place}", FINISHED, 0.0, 1.0, ended_at=float(place)) for place in range(30)]
    running = [job(f"seed={30 + place}", RUNNING, 1.0, -0.5, 0.25, step=7, left_s=130.0) for place in range(2)]
    waiting = [JobProgress(name=f"seed={place}", folder=RunFolder(Path("runs"))) for place in range(32, 102)]
    return [*ended, *running, *waiting]


def shown(of: list[JobProgress], width: int, height: int = 20) -> list[str]:
    return drawn(SweepDisplay(Console(), of, at_once=2, metric=None).table(height, width), width)


@pytest.mark.parametrize("height", [8, 24])
@pytest.mark.parametrize("width", [80, 140])
def test_it_fits_and_what_runs_is_there_before_what_ended_last(height: int, width: int) -> None:
    """Jobs took 14.5 s on average: 70 of them and two of 130 s, two at a time, take 638 s."""
    lines = shown(jobs(), width, height)
    assert len(lines) <= height
    assert sum("running" in line for line in lines) == 2
    shown_names = [line.split()[0] for line in lines if "finished" in line and "25/25" in line]
    assert shown_names == [f"seed={place}" for place in range(30 - len(shown_names), 30)]
    assert lines[-1] == "30 of 102 done, 70 waiting; 0 s so far, about 10 min left"


def test_a_long_name_is_cut_and_nothing_else_is() -> None:
    values = [-1234.5] * 9
    named = [job(LONG.format(seed), RUNNING, *values, step=1234, max_steps=10000, left_s=7200.0) for seed in range(3)]
    lines = shown(named, 80)
    assert all("1234/10000" in line and "-1234.500" in line and "2 h 0 min" in line for line in lines[1:4])
    assert [line.split()[0][-7:] for line in lines[1:4]] == [f",seed={seed}" for seed in range(3)]
    wide = shown(named, 140)
    assert all(LONG.format(seed) in wide[seed + 1] for seed in range(3))


@pytest.mark.parametrize(
    ("values", "curve"),
    [((), ""), ((1.0, 1.0), "▄▄"), (range(8), "▁▂▃▄▅▆▇█"), ((0.0,) * 10 + (1.0,) * 10, "▁▁▁▁▁█████")],
)
def test_a_curve_goes_from_the_lowest_to_the_highest(values: Sequence[float], curve: str) -> None:
    """Eight levels; of more values than columns each column is a mean of as many."""
    assert sparkline(values) == curve
