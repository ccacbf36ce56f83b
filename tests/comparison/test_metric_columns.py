"""metrics.jsonl as columns: the same numbers, the same strictness as the reader of events."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from rlhf_cli.comparison.metric_columns import read_columns
from rlhf_cli.errors import RunError
from rlhf_cli.runs.metrics_file import read_metrics, series

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


def test_the_numbers_are_those_that_the_reader_of_events_gives(tmp_path: Path, whole: str) -> None:
    file = write(tmp_path, whole)
    columns = read_columns(file)
    assert list(columns) == ["loss", "reward", "late", "eval_loss"]
    for name in ("reward", "late", "eval_loss"):
        assert (list(columns[name].steps), list(columns[name].values)) == series(read_metrics(file), name)
    assert (columns.num_events, columns.last_step) == (3, 2)


def test_null_is_no_number_and_yet_an_event(tmp_path: Path, whole: str) -> None:
    loss = read_columns(write(tmp_path, whole))["loss"]
    assert list(loss.steps) == [1, 2]
    assert loss.values[0] == 0.5
    assert math.isnan(loss.values[1])


def test_only_what_is_wanted_is_kept(tmp_path: Path, whole: str) -> None:
    assert list(read_columns(write(tmp_path, whole), {"late", "reward"}.__contains__)) == ["reward", "late"]


def test_a_metric_that_was_never_logged_is_an_empty_series(tmp_path: Path, whole: str) -> None:
    assert len(read_columns(write(tmp_path, whole)).series("kl")) == 0
    assert len(read_columns(tmp_path / "nothing.jsonl")) == 0


@pytest.mark.parametrize("cut", [b'{"step": 3, "time_s": 2.0, "lo', b"\0" * 40, b"\n\n"], ids=["cut", "zeros", "blank"])
def test_a_tail_that_a_kill_or_a_power_cut_leaves_is_passed_over(tmp_path: Path, whole: str, cut: bytes) -> None:
    assert read_columns(write(tmp_path, whole.encode() + cut)).num_events == 3


def test_python_s_own_nan_is_read_as_none(tmp_path: Path, whole: str) -> None:
    """JSON has no NaN and orjson refuses it; a metrics.jsonl of somebody's own script may hold one."""
    columns = read_columns(write(tmp_path, whole + '{"step": 3, "time_s": 2.0, "loss": NaN}\n'))
    assert math.isnan(columns["loss"].values[-1])


@pytest.mark.parametrize(
    "line", ['{"step": 3, "time', "[1, 2]", '{"time_s": 1.0}', '{"step": "3", "time_s": 1.0}', "half a word"]
)
def test_a_damaged_line_in_the_middle_is_told(tmp_path: Path, whole: str, line: str) -> None:
    """And what the reader of events refuses is refused, by the same words."""
    first, rest = whole.split("\n", 1)
    file = write(tmp_path, f"{first}\n{line}\n{rest}")
    with pytest.raises(RunError, match=r"metrics\.jsonl cannot be read") as ours:
        read_columns(file)
    with pytest.raises(RunError) as theirs:
        read_metrics(file)
    assert str(ours.value) == str(theirs.value)
    assert "line 2" in str(ours.value)


def test_two_lines_that_are_cut_are_no_mere_kill(tmp_path: Path, whole: str) -> None:
    with pytest.raises(RunError, match="line 4"):
        read_columns(write(tmp_path, whole + '{"step": 3, "ti\n{"step": 4, "ti'))


def test_events_of_several_shapes_stay_in_their_order(tmp_path: Path) -> None:
    """What is logged now and then changes the shape of an event, not its place."""
    events = [{"step": step, "time_s": 1.0, **({"seldom": 1.0} if step % 3 else {}), "loss": step} for step in range(9)]
    columns = read_columns(write(tmp_path, "".join(json.dumps(event) + "\n" for event in events)))
    assert list(columns["loss"].values) == list(columns["loss"].steps) == list(range(9))
    assert list(columns["seldom"].steps) == [1, 2, 4, 5, 7, 8]
