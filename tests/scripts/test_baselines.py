"""Test `make bench-check` on made-up numbers: 15 % of time, 1 % of memory, no change of a counter."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from scripts.bench import baselines
from scripts.bench.baselines import kind_of_machine, main, regressions
from scripts.bench.measures import Measure, of_pairs, read, table, write

STEP = Measure("step", "time", 0.40)
PEAK = Measure("peak", "memory", 800.0)
SLOTS = Measure("slots", "counter", 0.75)
OFF = Measure("gradient", "note", 3e-7)
BEFORE = [STEP, PEAK, SLOTS, OFF]


def found(**values: float) -> list[Measure]:
    return [replace(measure, found=values.get(measure.name, measure.found)) for measure in BEFORE]


@pytest.mark.parametrize(
    ("values", "worse"),
    [
        ({"step": 0.459, "peak": 807.9, "gradient": 1.0}, []),
        ({"step": 0.01, "peak": 0.01}, []),
        ({"step": 0.461}, ["step"]),
        ({"peak": 808.1}, ["peak"]),
        ({"slots": 0.7501}, ["slots"]),
        ({"slots": 0.7499}, ["slots"]),
    ],
)
def test_only_a_change_beyond_its_tolerance_is_a_regression(values: dict[str, float], worse: list[str]):
    """0.40 * 1.15 = 0.46 and 800 * 1.01 = 808; better is never worse, and a note is not compared."""
    assert [regression.name for regression in regressions(found(**values), BEFORE)] == worse


def test_memory_is_compared_in_our_mb_and_two_mb_are_always_allowed():
    """Of 50 MB 1 % is half a MB; the ratio, which the other side moves as well, is not compared."""
    before = Measure("peak", "memory", 0.5, unit="MB", ours=50.0, other=100.0)
    assert not regressions([replace(before, found=0.9, ours=51.9)], [before])
    assert regressions([replace(before, found=0.3, ours=52.1)], [before])


def test_a_missing_measure_is_a_regression_and_a_new_one_is_not_compared():
    (missing,) = regressions([PEAK, SLOTS, Measure("new", "time", 9.0)], BEFORE)
    assert (missing.name, missing.found) == ("step", None)


def test_a_ratio_is_the_median_of_the_ratios_of_the_pairs():
    """Ratios 1/2, 3/4 and 8/2: their median is 0.75; the medians of the sides are 3 and 2."""
    measure = of_pairs("step", "time", "CPU s", [(1, 2), (3, 4), (8, 2)], 0.7)
    assert (measure.found, measure.ours, measure.other) == (0.75, 3, 2)
    assert (measure.low, measure.high, measure.pairs) == (0.5, 4.0, 3)
    assert "**missed**" in table([measure])
    assert "**missed**" not in table([replace(measure, goal=0.75)])


def test_without_a_baseline_the_command_to_store_one_is_printed_and_then_regressions_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    results, place = tmp_path / "bench.json", tmp_path / "baselines"
    monkeypatch.setattr(baselines, "PLACE", place)

    def run(*words: str) -> int:
        monkeypatch.setattr(sys, "argv", ["baselines", "--results", str(results), *words])
        return main()

    write(results, BEFORE)
    assert run() == 0
    assert f"--results {results} --store" in capsys.readouterr().out
    assert run("--store") == 0
    assert read(place / f"{kind_of_machine()}.json") == BEFORE
    assert run() == 0
    write(results, found(step=0.5))
    assert run() == 1
    assert "step: baseline 0.4, found 0.5: 25.0% more; 15% are allowed of time" in capsys.readouterr().out
