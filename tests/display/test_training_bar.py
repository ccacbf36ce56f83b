"""The bar while a run trains: drawn on a terminal, lines in a pipe; the time left."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch.utils.data import DataLoader

from rlhf_cli.display.training_bar import TrainingBar
from rlhf_cli.runs.heartbeat import EVALUATION, TRAINING, Heartbeat

POLICY: dict[str, Any] = {"reward_weights": None}


def arguments(**named: object) -> Any:
    return SimpleNamespace(**named)


def trained(bar: TrainingBar, args: Any, steps: range) -> None:
    """Tell a bar what the Trainer tells it in `steps` of 40, with a reward in every fourth step."""
    state: Any = SimpleNamespace(global_step=steps[0] - 1, max_steps=40)
    control: Any = SimpleNamespace()
    bar.on_train_begin(args, state, control)
    for step in steps:
        state.global_step = step
        bar.on_step_end(args, state, control)
        bar.on_log(args, state, control, logs={"loss": 0.5} | ({"reward": float(step)} if step % 4 == 0 else {}))
    bar.on_log(args, state, control, logs={"eval_loss": 1.0})
    bar.print("one sample")
    bar.on_train_end(args, state, control)


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return the printed lines with every time as T."""
    return re.sub(r"\d+:\d\d:\d\d", "T", capsys.readouterr().out).splitlines()


def test_a_pipe_gets_a_line_every_tenth_with_the_time_so_far_and_the_time_left(
    capsys: pytest.CaptureFixture[str],
) -> None:
    trained(TrainingBar(), arguments(**POLICY), range(1, 13))
    assert lines(capsys) == [*(f"step {step}/40  reward {step}.000  T, left T" for step in (4, 8, 12)), "one sample"]


def test_a_trainer_without_rewards_shows_its_loss(capsys: pytest.CaptureFixture[str]) -> None:
    trained(TrainingBar(), arguments(), range(1, 5))
    assert lines(capsys) == ["step 4/40  loss 0.500  T, left T", "one sample"]


def test_a_minute_without_a_line_gets_one(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = itertools.count(0, 25)
    monkeypatch.setattr("rlhf_cli.display.training_bar.time.monotonic", lambda: float(next(seconds)))
    trained(TrainingBar(), arguments(), range(1, 4))
    assert lines(capsys)[0].startswith("step 3/40  loss 0.500")


def test_an_evaluation_counts_its_rows_in_both_passes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    heartbeat = Heartbeat(tmp_path, 0)
    bar = TrainingBar(heartbeat)
    bar._is_quiet = lambda: True  # type: ignore[method-assign]
    heartbeat.enter(TRAINING)
    with heartbeat.during(EVALUATION):
        for batches in (2, 4):  # the greedy pass has smaller batches
            loader = DataLoader(list(range(275)), batch_size=-(-275 // batches))  # type: ignore[arg-type]
            for _ in range(batches):
                bar.on_prediction_step(arguments(**POLICY), None, None, eval_dataloader=loader)  # type: ignore[arg-type]
    assert [line.partition("  ")[0] for line in lines(capsys)] == [
        *(f"evaluating, sampled {done} of 275" for done in (138, 275)),
        *(f"evaluating, greedy {done} of 275" for done in (69, 138, 206, 275)),
    ]
    heartbeat.close()


def test_a_line_of_eighty_columns_has_room_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # as a terminal
    monkeypatch.setenv("COLUMNS", "80")
    heartbeat, args = Heartbeat(tmp_path, 0), arguments(**POLICY)
    bar, state = TrainingBar(heartbeat), SimpleNamespace(global_step=1234, max_steps=20000)
    bar.on_train_begin(args, state, None)  # type: ignore[arg-type]
    bar.on_log(args, state, None, logs={"reward": 0.912})  # type: ignore[arg-type]
    with heartbeat.during(EVALUATION):
        bar.on_prediction_step(args, None, None, eval_dataloader=DataLoader([*range(1000)]))  # type: ignore[arg-type]
        rows = ["".join(part.text for part in line) for line in bar._console.render_lines(bar._bar.get_renderable())]
    bar.stop()
    assert [row.split()[0] for row in rows] == ["training", "evaluating"]
    assert " 1234/20000 " in rows[0]
    assert rows[1].split()[3:6] == ["of", "1000", "sampled"]
    assert "…" not in "".join(rows)
    heartbeat.close()


def test_the_time_left_is_by_the_mean_time_of_a_step(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first step of 100 s warms up, then 3 steps of 2 s: 36 steps are left, of 2 s each."""
    at = [0.0]
    bar = TrainingBar()
    monkeypatch.setattr(bar._bar, "get_time", lambda: at[0])
    state: Any = SimpleNamespace(global_step=0, max_steps=40)
    bar.on_train_begin(arguments(), state, None)  # type: ignore[arg-type]
    for step, took_s in enumerate((100, 2, 2, 2), 1):
        at[0], state.global_step = at[0] + took_s, step
        bar.on_step_end(arguments(), state, None)  # type: ignore[arg-type]
    bar.on_log(arguments(), state, None, logs={"loss": 0.5})
    assert capsys.readouterr().out.endswith(", left 0:01:12\n")
