"""Completions that never end and completions of nothing are said, once, with their share."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest

from rlhf_cli.launch.callbacks import WatchCompletionEnds
from rlhf_cli.runs.run_status import read_status


class Bar:
    """What is printed above it."""

    def __init__(self) -> None:
        self.said = io.StringIO()

    def print(self, shown: object) -> None:
        self.said.write(f"{shown}\n")


def said(*logged: tuple[float, float], limit: int | None = 16) -> list[str]:
    """What is said after logs of (share cut off, longest)."""
    bar: Any = Bar()
    watch = WatchCompletionEnds(bar, limit)
    nothing: Any = SimpleNamespace()
    for step, (share, longest) in enumerate(logged, 1):
        logs = {"completions/clipped_ratio": share, "completions/max_length": longest}
        watch.on_log(nothing, SimpleNamespace(global_step=step), nothing, logs=logs)  # type: ignore[arg-type]
        watch.on_log(nothing, nothing, nothing, logs={"eval_loss": 1.0})
    return bar.said.getvalue().splitlines()


@pytest.mark.fault(38)
def test_three_in_a_row_are_said_once() -> None:
    (line,) = said((1.0, 16), (0.95, 16), (0.96, 16), (1.0, 16), (1.0, 16))
    at = "trainer.args.max_completion_length=16"
    assert line.startswith(f"warning: 97% of the completions up to step 3 were cut off at {at}: they have no room")


def test_negative_control_one_that_ends_begins_the_count_anew() -> None:
    assert said((1.0, 16), (1.0, 16), (0.94, 16), (1.0, 16), (1.0, 16)) == []


@pytest.mark.fault(38)
def test_empty_ones_are_said() -> None:
    """An empty completion is the token of the end alone."""
    assert said((0.0, 1), (0.0, 1)) == []
    assert said((0.0, 1), (0.0, 1), (0.0, 2), (0.0, 1)) == []
    (line,) = said((0.0, 1), (0.0, 1), (0.0, 1), (0.0, 1))
    assert line == "warning: every completion up to step 3 was empty: the policy ends before it has begun"


def test_without_a_limit() -> None:
    assert "were cut off: they have" in said(*[(1.0, 9)] * 3, limit=None)[0]


@pytest.mark.fault(38)
def test_a_policy_that_never_writes_its_end(train, says, capsys) -> None:
    says([5, 5, 5, 5])
    code, folder = train("guards.no_signal=off")
    assert code == 0
    assert "warning: 100% of the completions up to step 3 were cut off" in " ".join(capsys.readouterr().out.split())
    assert "of the completions up to step 3 were cut off" in folder.log.read_text()
    assert read_status(folder).warnings >= 1
