"""The bar while a run trains: drawn on a terminal, lines where there is none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rlhf_cli.launch.callbacks import TrainingBar


def trained(first: int, last: int) -> None:
    """What the Trainer tells a bar in steps `first` to `last` of 40."""
    bar, nothing = TrainingBar(), SimpleNamespace()
    state: Any = SimpleNamespace(global_step=first - 1, max_steps=40)
    control: Any = nothing
    bar.on_train_begin(nothing, state, control)
    for step in range(first, last + 1):
        state.global_step = step
        bar.on_log(nothing, state, control, logs={"loss": 0.5, "reward": float(step)})
        bar.on_step_end(nothing, state, control)
    bar.on_log(nothing, state, control, logs={"eval_loss": 1.0})
    bar.print("one sample")
    bar.on_train_end(nothing, state, control)


def test_without_a_terminal_a_line_every_tenth(capsys: pytest.CaptureFixture[str]) -> None:
    trained(1, 12)
    lines = [f"step {step}/40  reward {step}.000" for step in (4, 8, 12)]
    assert capsys.readouterr().out.splitlines() == [*lines, "one sample"]
