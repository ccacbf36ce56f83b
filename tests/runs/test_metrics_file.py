"""metrics.jsonl: what is written, what is read back, what a resumed run forgets."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy
import pytest

from rlhf_cli.runs.metrics_file import MetricsWriter, read_metrics, rewind, series, start_and_end


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


def refuse(constant: str) -> Any:
    raise AssertionError(f"{constant} is no JSON")


def test_one_object_a_line(path: Path) -> None:
    writer = MetricsWriter(path)
    writer.write(1, {"loss": 0.5})
    writer.write(2, {"loss": numpy.float32(0.25), "reward": 1})
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["step"], line["loss"]) for line in lines] == [(1, 0.5), (2, 0.25)]
    assert 0 <= lines[0]["time_s"] <= lines[1]["time_s"] < 5


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, numpy.float64("nan"), numpy.float32("inf")])
def test_what_is_no_finite_number_is_null(path: Path, value: float) -> None:
    MetricsWriter(path).write(1, {"loss": value, "reward": 1.0})
    assert json.loads(path.read_text(), parse_constant=refuse)["loss"] is None
    events = read_metrics(path)
    assert series(events, "loss") == ([], [])
    assert series(events, "reward") == ([1], [1.0])


def test_a_cut_last_line_is_left_out(path: Path) -> None:
    path.write_text('{"step": 1, "time_s": 0.1}\n{"step": 2, "time_s": 0.2}\n{"step": 3, "ti')
    assert [event["step"] for event in read_metrics(path)] == [1, 2]


def test_rewind(path: Path) -> None:
    steps = [1, 2, 3, 4]
    path.write_text("".join(json.dumps({"step": step, "time_s": step}) + "\n" for step in steps) + '{"step": 5, "t')
    rewind(path, 2)
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2]
    MetricsWriter(path).write(3, {})
    assert [event["step"] for event in read_metrics(path)] == [1, 2, 3]
    assert [file.name for file in path.parent.iterdir()] == ["metrics.jsonl"]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], None),
        ([3.0], (3.0, 3.0)),
        ([1.0, 2.0, 9.0], (1.0, 9.0)),
        ([float(value) for value in range(10)], (0.0, 9.0)),
        ([float(value) for value in range(19)], (0.0, 18.0)),  # a tenth of 19 is one
        ([float(value) for value in range(20)], (0.5, 18.5)),  # the first two, the last two
        ([0.0, 3.0, 6.0] + [100.0] * 24 + [1.0, 2.0, 6.0], (3.0, 3.0)),  # three of thirty: 9/3 and 9/3
    ],
)
def test_start_and_end(values: list[float], expected: tuple[float, float] | None) -> None:
    assert start_and_end(values) == expected


def test_the_clock_goes_on_where_it_stopped(path: Path) -> None:
    path.write_text('{"step": 1, "time_s": 100.0}\n')
    MetricsWriter(path).write(2, {})
    assert 100 <= read_metrics(path)[-1]["time_s"] < 105
