"""metrics.jsonl: what is written, what is read back, what a resumed run forgets."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import numpy
import pytest

from rlhf_cli.errors import RunError
from rlhf_cli.runs import metrics_file
from rlhf_cli.runs.metric_arrays import columns_of, reward_spans
from rlhf_cli.runs.metrics_file import MetricsWriter, events_after, read_metrics, rewind, series


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


def test_one_object_a_line_and_the_clock_goes_on(path: Path) -> None:
    """What is no finite number is null; seconds have three decimals, and those of an earlier attempt before them."""
    path.write_text('{"step": 0, "time_s": 100.0}\n')
    writer = MetricsWriter(path)
    bad = dict(zip("abcde", (math.nan, math.inf, -math.inf, numpy.float64("nan"), numpy.float32("inf")), strict=True))
    written = [writer.write(1, {"loss": numpy.float32(0.25), "password": 1, **bad})]
    written.append(writer.write(2, {"loss": 0.5}))
    _, *lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines == written == read_metrics(path)[1:]
    first, second = (line.pop("time_s") for line in lines)
    assert 100 <= first <= second < 105
    assert [round(first, 3), round(second, 3)] == [first, second]
    assert lines == [{"step": 1, "loss": 0.25, "password": 1, **dict.fromkeys("abcde")}, {"step": 2, "loss": 0.5}]
    assert (series(written, "a"), series(written, "loss")) == (([], []), ([1, 2], [0.25, 0.5]))
    assert float(str(MetricsWriter(path.with_name("new")).write(1, {})["time_s"])) < 0.5


EVENT = b'{"step": 1, "time_s": 0.5}\n'
CUT = b'{"step": 3, "ti'


@pytest.mark.parametrize(
    ("content", "steps"),
    [
        (EVENT + CUT, [1]),
        (EVENT + bytes(4096), [1]),  # what a power cut leaves
        (b" \t\r\n" + EVENT + b"\0 \n" + EVENT + CUT + b" \n\0\n", [1, 1]),
        (b'{"step": %d, "time_s": 1, "loss": NaN}' % (2**53 - 1), [2**53 - 1]),  # a float counts up to there
        (b'{"step": 1, "time_s": -1, "a": ' + b"[" * 98 + b"]" * 98 + b"}\n" + CUT, [1]),
    ],
)
def test_a_cut_last_line_is_left_out(path: Path, content: bytes, steps: list[int]) -> None:
    path.write_bytes(content)
    assert [event["step"] for event in read_metrics(path)] == steps


DAMAGED = (
    b"3",
    b'["a"]',
    b'{"loss": 1}',
    b'{"step": "x", "time_s": 1}',
    b"\xff\xfe",
    b'{"step": %d, "time_s": 1}' % 2**53,
)


@pytest.mark.parametrize(
    ("line", "rest"), [*((line, rest) for line in DAMAGED for rest in (b"\n\n", b"")), (CUT + b"x" * 40, b"\n" + EVENT)]
)
def test_another_line_is_named_by_its_number(path: Path, line: bytes, rest: bytes) -> None:
    path.write_bytes(EVENT + line + rest)
    with pytest.raises(RunError) as caught:
        read_metrics(path)
    shown = line[:40].decode(errors="backslashreplace")
    assert (caught.value.where, caught.value.got) == (str(path), f"line 2: {shown!r}")


def test_rewind(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And it reaches the disk."""
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    MetricsWriter(path).flush()
    assert (rewind(path, 2), synced) == (0, [])
    path.touch()
    assert (rewind(path, 2), len(synced)) == (0, 2)
    steps, end = [1, 2, 4, 3], '{"step": 2, "train_runtime": 1.0}\n{"step": 5, "t'
    path.write_text("".join(json.dumps({"step": step, "time_s": step}) + "\n" for step in steps) + end)
    assert rewind(path, 2) == 4
    MetricsWriter(path).flush()
    assert len(synced) == 2 * 2 + 1
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2]
    MetricsWriter(path).write(3, {})
    assert [event["step"] for event in read_metrics(path)] == [1, 2, 3]
    MetricsWriter(path).write(0, {})
    assert (rewind(path, 0), read_metrics(path)) == (3, [])  # an evaluation before the first step is made again
    assert [file.name for file in path.parent.iterdir()] == ["metrics.jsonl"]


def test_events_of_a_file_that_is_being_written(path: Path) -> None:
    """Whole lines after a place in it, without the summary and what is damaged; the next look begins at their end."""
    lines = EVENT + EVENT + b'oops\n{"step": 2, "time_s": 1, "train_runtime": 1}\n' + EVENT
    path.write_bytes(lines + CUT)
    found, end = events_after(path, len(EVENT))
    assert (found, end) == ([{"step": 1, "time_s": 0.5}] * 2, len(lines))
    assert events_after(path, end) == ([], end)


def test_numbers_of_the_rewards_in_a_run() -> None:
    """Twenty steps: a tenth are two. A share of failures needs calls; what was never a number has no span."""
    events: list[dict[str, object]] = [
        {"step": step, "reward": step, "rewards/none/mean": None} for step in range(1, 21)
    ]
    for step, event in enumerate(events[:10], 1):
        event |= {"rewards/b/mean": step, "rewards/a/mean": 3.0, "rewards/a/x/mean": 9.0}
        event |= {"rewards/b/errors": 1, "rewards/b/calls": 4, "rewards/a/errors": 0, "rewards/a/calls": 4}
        event |= {"rewards/none/errors": 5}
    spans = {"reward": (1.5, 19.5), "b": (1.0, 10.0), "a": (3.0, 3.0)}
    assert list(reward_spans(columns_of(events)).items()) == list(spans.items())
    assert metrics_file.failed_shares(iter(events)) == {"b": 0.25}


def test_what_an_evaluation_in_training_logged() -> None:
    total = "eval_greedy/total"
    metrics: dict[str, object] = {total: 0.25, f"{total}/low": 0.125, f"{total}/high": 0.375, f"{total}/unseen": 0.5}
    metrics |= {"eval_sampled/total": 0.75, "eval_sampled/total/low": 0.5, "eval_loss": 2.0, "eval_x_loss": 1.5}
    metrics |= {"eval_x_rewards/accuracies": 0.5, "eval_y_runtime": 1.0, "eval_runtime": 1.0, "runtime": 1.0}
    greedy = "greedy 0.250 [0.125, 0.375] (0.500 on prompts that are not trained on)"
    assert metrics_file.describe_held_out(metrics) == f"{greedy}, sampled 0.750"
    half = {"eval_sampled/total": 0.75, "eval_sampled/total/high": 1.0}
    assert metrics_file.describe_held_out(half) == "sampled 0.750"
    assert metrics_file.describe_held_out(metrics, "eval_x_") == "loss 1.500, rewards/accuracies 0.500"
    assert metrics_file.describe_held_out({}) == ""
    assert list(metrics_file.evaluation_sets(metrics).items()) == [("", "eval_"), ("y", "eval_y_")]
    named = ["eval_pass@1/a", "eval_y_pass@2/b", "eval_pass@4/a", "eval_loss"]
    assert metrics_file.most_attempts(named) == ["eval_pass@4/a", "eval_y_pass@2/b"]


@pytest.mark.parametrize(
    ("last", "every", "kept"), [(2, None, [1, 99_999, 100_000]), (1, 3, [0, 1, 3, 6, 99_999, 100_000]), (9, None, None)]
)
def test_which_completion_tables_stay(tmp_path: Path, last: int, every: int | None, kept: list[int] | None) -> None:
    """The first of training, the newest and every third, and what TRL did not name."""
    steps = [0, 1, 2, 3, 5, 6, 99_999, 100_000]
    for file in (metrics_file.table_file(tmp_path, step) for step in steps[::-1]):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    (other := tmp_path / "completions/other.parquet").touch()
    metrics_file.prune_completions(tmp_path, last=last, every=every)
    names = [(step, tmp_path / f"completions/completions_{step:05}.parquet") for step in kept or steps]
    assert (metrics_file.tables_by_step(tmp_path), other.exists()) == (names, True)
