"""What `rlhf score` does grows with the rows and not with their square, counted in instructions and calls."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest
from rich.console import Console

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.display.score_tables import show_bench
from rlhf_cli.evaluation.score_completions import score
from rlhf_cli.jobs.prepare import prepare
from rlhf_cli.measure.score_bench import score_bench
from rlhf_cli.text.json_values import write_json


def instructions(function: Callable[[], object]) -> int:
    """Return how many bytecode instructions `function` executes in Python code, whatever it calls; C is not seen."""
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> object:
        nonlocal count
        if event == "call":
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        elif event == "opcode":
            count += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(before)
    return count


def share_that_is_quadratic(of_rows: Callable[[int], Callable[[], object]], num_rows: int) -> float:
    """Return which share of the work for `3 * num_rows` rows grows with their square.

    Of `a + b n + c n^2` at n, 2n and 3n the second difference is `2 c n^2`; the share is `9 c n^2` of the last.
    """
    of_rows(num_rows)()  # what is imported and remembered is so from then on
    once, twice, thrice = (instructions(of_rows(count * num_rows)) for count in (1, 2, 3))
    return 4.5 * (thrice - 2 * twice + once) / thrice


pytestmark = pytest.mark.usefixtures("place")
_ROWS = 60

REWARDS = """
def called(name, completions):
    with open("calls.txt", "a") as file:
        print(name, len(completions), file=file)

def plain(completions, **columns):
    called("plain", completions)
    return [float(text[:4]) for text in completions]

def gated(completions, **columns):
    called("gated", completions)
    return [1.0 for _ in completions]

async def waits(completions, **columns):
    called("waits", completions)
    return [2.0 for _ in completions]

def dense(completions, **columns):
    return [[(0, 1, 1.0), (1, len(text), -0.5)] for text in completions]

def alone(completions, **columns):
    if len(completions) > 1 or completions[0][3] == "7":
        raise ValueError("not these")
    return [0.0]
"""
THREE = [f"rewards.{name}.fn=./mine.py:{name}" for name in ("plain", "gated", "waits")]
GATE = "rewards.gated.gate={by: plain, at_least: 5, otherwise: exclude}"
ALONE = ["rewards.alone.fn=./mine.py:alone", "rewards.alone.on_error=exclude"]


def rows_of(count: int) -> list[dict[str, object]]:
    return [{"prompt": f"{row // 4}?", "completion": f"{row:04} is it", "good": row % 3 == 0} for row in range(count)]


@pytest.fixture
def experiment(place: Path) -> Callable[[list[str]], Experiment]:
    """An experiment with these rewards and no others."""
    (place / "mine.py").write_text(REWARDS)
    without = [f"~rewards.{name}" for name in ("correct", "format", "brevity")]
    return lambda words: prepare(["+exp=quickstart", *without, *words]).experiment


@pytest.mark.parametrize(
    "words", [[*THREE, GATE], ["rewards.dense.fn=./mine.py:dense"], ALONE], ids=["three", "dense", "failing"]
)
def test_scoring_is_linear(experiment: Callable[[list[str]], Experiment], words: list[str]) -> None:
    of_words = experiment(words)
    assert share_that_is_quadratic(lambda count: lambda: score(of_words, rows_of(count)), _ROWS) < 0.01


def test_what_is_said_is_linear(experiment: Callable[[list[str]], Experiment]) -> None:
    of_words = experiment([*THREE, GATE])

    def said(count: int) -> Callable[[], object]:
        rows = rows_of(count)
        scores = score(of_words, rows)

        def say() -> None:
            bench = score_bench(rows, scores, label="good")
            write_json(bench.as_json(rows, scores), lambda _: None)
            show_bench(Console(file=io.StringIO()), rows, scores, bench)

        return say

    assert share_that_is_quadratic(said, _ROWS) < 0.01


def test_negative_control_a_pass_over_all_rows_for_each_is_seen() -> None:
    """A second pass a row, over bits of no weight: in 180 rows of 100 instructions it is more than a tenth."""

    def of_rows(count: int) -> Callable[[], object]:
        return lambda: [sum(row for _ in range(20)) + sum(1 for _ in range(count // 10)) for row in range(count)]

    assert share_that_is_quadratic(of_rows, _ROWS) > 0.1


def test_a_reward_is_called_once_with_all_rows_it_is_open_for(
    experiment: Callable[[list[str]], Experiment], place: Path
) -> None:
    rows = rows_of(500)
    score(experiment([*THREE, "rewards.gated.gate={by: plain, at_least: 10, otherwise: exclude}"]), rows)
    assert sorted((place / "calls.txt").read_text().splitlines()) == ["gated 490", "plain 500", "waits 500"]
