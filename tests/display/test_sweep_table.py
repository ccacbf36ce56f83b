"""The table of a sweep: what matters most is what is shown, in any terminal."""

from __future__ import annotations

import pytest

from rlhf_cli.display.sweep_tables import JobRow, SweepRows, sweep_table
from rlhf_cli.display.terminal import sparkline
from tests.support.terminal import drawn

LONG = "a.weight=0.1,learning_rate=1e-5,truncation=bootstrap,seed={}"


def rows(num_running: int = 2, num_ended: int = 30, num_waiting: int = 70) -> list[JobRow]:
    ended = [JobRow(f"seed={place}", "finished", 25, 25, (0.0, 1.0), None, float(place)) for place in range(num_ended)]
    running = [
        JobRow(f"seed={num_ended + place}", "running", 7, 25, (1.0, -0.5, 0.25), 130.0) for place in range(num_running)
    ]
    waiting = [JobRow(f"seed={num_ended + num_running + place}", "waiting") for place in range(num_waiting)]
    return [*ended, *running, *waiting]


def sweep(of: list[JobRow], left_s: float | None = 3700.0) -> SweepRows:
    return SweepRows(of, "reward", left_s, 65.0)


@pytest.mark.parametrize("height", [8, 24])
@pytest.mark.parametrize("width", [80, 140])
def test_it_fits_and_what_runs_is_there_before_what_ended_last(height: int, width: int) -> None:
    lines = drawn(sweep_table(sweep(rows()), height=height, width=width), width)
    assert len(lines) <= height
    assert sum("running" in line for line in lines) == 2
    shown = [line.split()[0] for line in lines if "finished" in line and "25/25" in line]
    assert shown == [f"seed={place}" for place in range(30 - len(shown), 30)]
    assert lines[-1] == "30 of 102 done, 70 waiting; 1 min so far, about 1 h 1 min left"
    assert lines[-2].startswith("not shown: ")


def test_a_long_name_is_cut_and_nothing_else_is() -> None:
    named = [JobRow(LONG.format(seed), "running", 1234, 10000, (-1234.5,) * 9, 7200.0) for seed in range(3)]
    lines = drawn(sweep_table(sweep(named), height=20, width=80), 80)
    assert all("1234/10000" in line and "-1234.500" in line and "2 h 0 min" in line for line in lines[1:4])
    assert [line.split()[0][-7:] for line in lines[1:4]] == [f",seed={seed}" for seed in range(3)]
    wide = drawn(sweep_table(sweep(named), height=20, width=140), 140)
    assert all(LONG.format(seed) in wide[seed + 1] for seed in range(3))


@pytest.mark.parametrize(
    ("values", "curve"),
    [
        ((), ""),
        ((1.0, 1.0), "▄▄"),
        ((0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0), "▁▂▃▄▅▆▇█"),
        ((0.0,) * 10 + (1.0,) * 10, "▁▁▁▁▁█████"),
    ],
)
def test_a_curve_goes_from_the_lowest_to_the_highest(values: tuple[float, ...], curve: str) -> None:
    """Eight levels; of more values than columns each column is a mean of as many."""
    assert sparkline(values) == curve
