"""The bar while a run trains, drawn on a terminal or as lines in a pipe; the time left; the table of a sweep."""

from __future__ import annotations

import itertools
import re
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from torch.utils.data import DataLoader
from transformers import IntervalStrategy

from rlhf_cli.display.sweep_progress import JobProgress, SweepDisplay
from rlhf_cli.display.terminal import sparkline
from rlhf_cli.display.training_bar import TimeLeft, TrainingBar, evaluations_from
from rlhf_cli.runs.heartbeat import EVALUATION, TRAINING, Heartbeat
from rlhf_cli.runs.metric_arrays import columns_of
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_status import FINISHED, RUNNING, RunState
from tests.support.terminal import drawn

POLICY: dict[str, Any] = {"reward_weights": None}


def arguments(**named: object) -> Any:
    """Return arguments of a trainer that never evaluates; `named` are others."""
    usual = {"eval_strategy": IntervalStrategy.NO, "eval_delay": 0, "gradient_accumulation_steps": 1}
    return SimpleNamespace(**{**usual, **named})


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


def test_a_pipe_gets_a_line_every_tenth_with_the_time_so_far_and_the_time_left(capsys) -> None:
    """TRL logs the reward once a round; 16 steps a round make 2.5 rounds of 40 steps, and never show the loss."""
    trained(TrainingBar(), arguments(**POLICY), range(1, 13))
    assert lines(capsys) == [*(f"step {step}/40  reward {step}.000  T, left T" for step in (4, 8, 12)), "one sample"]
    trained(TrainingBar(), arguments(**POLICY, num_iterations=4, steps_per_generation=4), range(13, 17))
    assert lines(capsys) == ["round 2/3, step 16/40  reward 16.000  T, left T", "one sample"]


def test_a_trainer_without_rewards_shows_its_loss_and_a_minute_without_a_line_gets_one(capsys, monkeypatch) -> None:
    trained(TrainingBar(), arguments(), range(1, 5))
    assert lines(capsys) == ["step 4/40  loss 0.500  T, left T", "one sample"]
    seconds = itertools.count(0, 15)
    monkeypatch.setattr("rlhf_cli.display.training_bar.time.monotonic", lambda: float(next(seconds)))
    bar = TrainingBar()
    bar.left = TimeLeft(lambda: 0.0)
    trained(bar, arguments(), range(1, 4))
    assert lines(capsys)[0].startswith("step 3/40  loss 0.500")


def test_an_evaluation_counts_its_rows_in_both_passes(capsys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlhf_cli.display.training_bar._QUIET_S", 0.0)
    heartbeat = Heartbeat(tmp_path, 0)
    bar = TrainingBar(heartbeat)
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


@pytest.mark.parametrize(("steps_per_generation", "count"), [(1, " 1234/20000 "), (16, " round 78/1250 ")])
def test_a_line_of_eighty_columns_has_room_for_all(tmp_path: Path, monkeypatch, steps_per_generation, count) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # as a terminal
    monkeypatch.setenv("COLUMNS", "80")
    heartbeat, args = Heartbeat(tmp_path, 0), arguments(**POLICY, steps_per_generation=steps_per_generation)
    bar, state = TrainingBar(heartbeat), SimpleNamespace(global_step=1234, max_steps=20000)
    bar.on_train_begin(args, state, None)  # type: ignore[arg-type]
    bar.on_log(args, state, None, logs={"reward": 0.912})  # type: ignore[arg-type]
    bar.left.step_ends()
    bar.left.estimate(state.max_steps, 12)
    with heartbeat.during(EVALUATION):
        bar.on_prediction_step(args, None, None, eval_dataloader=DataLoader([*range(1000)]))  # type: ignore[arg-type]
        rows = ["".join(part.text for part in line) for line in bar._console.render_lines(bar._bar.get_renderable())]
    bar.stop()
    assert [row.split()[0] for row in rows] == ["training", "evaluating"]
    assert (count in rows[0], rows[0].rstrip().endswith(" + evaluations")) == (True, True)
    assert rows[1].split()[3:6] == ["of", "1000", "sampled"]
    assert "…" not in "".join(rows)
    heartbeat.close()


def test_the_time_left_counts_evaluations() -> None:
    """Worked by hand: a first step of 10 s, then steps of 2 s; one evaluation of 30 s."""
    at = [0.0]
    left = TimeLeft(lambda: at[0])
    assert str(left) == "left -:--:--"
    left.start()
    at[0] += 10
    left.step_ends()
    left.estimate(7, 3)
    assert str(left) == "left 0:01:10 + evaluations", "no step but the first, and no evaluation, was timed"
    for step_s in (2, 2):
        at[0] += step_s
        left.step_ends()
    left.evaluation_begins()
    at[0] += 30
    left.evaluation_ends()
    left.estimate(5, 2)
    assert str(left) == "left 0:01:10", "5 x 2 s + 2 x 30 s"
    at[0] += 4
    assert str(left) == "left 0:01:06", "it counts down until the next estimate"


def test_the_time_left_leaves_out_that_the_process_was_stopped(tmp_path: Path, monkeypatch) -> None:
    heartbeat = Heartbeat(tmp_path, 0)
    left = TrainingBar(heartbeat).left
    for _ in range(2):
        left.step_ends()
    heartbeat.stopped_s += 3600  # as the watchdog notes it: the clock has gone on
    monotonic = time.monotonic
    with monkeypatch.context() as patched:
        patched.setattr("rlhf_cli.runs.heartbeat.time.monotonic", lambda: monotonic() + 3600)
        left.estimate(10, 0)
        assert str(left) < "left 0:10:00"
    heartbeat.close()


@pytest.mark.parametrize(
    ("args", "step", "expected"),
    [
        ({}, 0, 0),
        ({"eval_strategy": IntervalStrategy.STEPS}, 0, 4),  # 3, 6, 9 and the last step, 10
        ({"eval_strategy": IntervalStrategy.STEPS}, 6, 2),
        ({"eval_strategy": IntervalStrategy.STEPS}, 10, 0),
        ({"eval_strategy": IntervalStrategy.STEPS, "eval_steps": 1.0}, 6, 4),  # only above 1 it becomes an int
        ({"eval_strategy": IntervalStrategy.STEPS, "eval_delay": 7}, 0, 2),
        ({"eval_strategy": IntervalStrategy.EPOCH}, 5, 2),  # the ends of the second and the third epoch
    ],
)
def test_evaluations_to_come_are_those_that_transformers_starts(args: dict[str, Any], step: int, expected: int) -> None:
    every = args.get("eval_steps", 3)
    state: Any = SimpleNamespace(global_step=step, max_steps=10, eval_steps=every, num_train_epochs=3, epoch=step / 4)
    assert evaluations_from(step + 1, arguments(**args), state) == expected


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


def test_a_curve_goes_from_the_lowest_to_the_highest() -> None:
    """Eight levels; of more values than columns each column is a mean of as many."""
    curves = {(): "", (1.0, 1.0): "▄▄", tuple(range(8)): "▁▂▃▄▅▆▇█", (0.0,) * 10 + (1.0,) * 10: "▁▁▁▁▁█████"}
    assert {values: sparkline(values) for values in curves} == curves
