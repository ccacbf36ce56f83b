"""The callbacks that write down a run: old tables go, the step is in its status, a history stays short."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlhf_cli.runs.metrics_file import read_metrics
from rlhf_cli.runs.recorder import KeepHeartbeat, Recorder, ShortHistory
from rlhf_cli.runs.run_folder import RunFolder, read_json
from rlhf_cli.runs.run_status import read_status

MakeRun = Callable[..., RunFolder]


def recorder_of(folder: RunFolder) -> Recorder:
    return Recorder(folder, None, keep_last=2, keep_every=None, new_code=dict, modes=None)


def at_step(step: int, **more: Any) -> Any:
    return SimpleNamespace(global_step=step, **more)


@pytest.mark.parametrize(("step", "kept"), [(9, [1, 2, 3, 4]), (10, [1, 3, 4])])
def test_tables_are_removed_every_ten_steps_but_for_the_first_and_the_last(
    make_run: MakeRun, step: int, kept: list[int]
) -> None:
    folder = make_run()
    (tables := folder.path / "completions").mkdir()
    for number in (1, 2, 3, 4):
        Path(tables, f"completions_{number:05}.parquet").touch()
    recorder_of(folder).on_step_begin(None, at_step(step), None)
    assert sorted(int(file.stem[-5:]) for file in tables.iterdir()) == kept
    recorder_of(folder).on_train_end(None, at_step(step), None)
    assert sorted(int(file.stem[-5:]) for file in tables.iterdir()) == [1, 3, 4]


def test_what_a_step_decided_is_recorded_once(make_run: MakeRun) -> None:
    folder, asked = make_run(), list[int]()
    recorder = Recorder(
        folder, None, keep_last=2, keep_every=None, new_code=dict, modes=lambda: (asked.append(1), {"mode": "a"})[1]
    )
    for step in (1, 2):
        recorder.on_step_end(None, at_step(step), None)  # type: ignore[arg-type]
    assert (read_json(folder.provenance)["mode"], len(asked)) == ("a", 1)


def test_an_event_has_the_time_since_the_training_began_and_its_step_is_in_the_status(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not since the first event, which may come minutes later; an attempt goes on from the time of the one before."""
    folder, now = make_run(status={"state": "running", "updated_at": 1.0}), [100.0]
    monkeypatch.setattr("rlhf_cli.runs.metrics_file.time.monotonic", lambda: now[0])
    for step in (6, 7):
        recorder = recorder_of(folder)
        recorder.on_train_begin(None, at_step(step - 1, max_steps=9), None)
        now[0] += 20.0
        recorder.on_log(None, at_step(step, max_steps=9), None, {"loss": 1})
        assert read_status(folder).step == step
    assert [event["time_s"] for event in read_metrics(folder.metrics)] == [20.0, 40.0]


def test_a_history_keeps_the_newest_hundred_of_either_kind_once_there_are_more_than_two_hundred() -> None:
    events = [{name: 0.0, "step": step} for step in range(150) for name in ("loss", "eval_loss")]
    losses = [{"loss": 0.0, "step": step} for step in range(201)]
    for history, kept in ((events, events[100:]), (losses[1:], losses[1:]), (losses, losses[101:])):
        state: Any = SimpleNamespace(log_history=[*history])
        ShortHistory().on_log(None, state, state)
        assert state.log_history == kept


def test_the_heartbeat_knows_the_phases_of_a_step() -> None:
    told: list[Any] = []
    heartbeat: Any = SimpleNamespace(
        enter=lambda phase, **rules: told.append(rules or phase), beat=lambda: told.append(1)
    )
    keeps = KeepHeartbeat(heartbeat)
    for event in ("train_begin", "step_begin", "pre_optimizer_step", "optimizer_step", "prediction_step", "train_end"):
        getattr(keeps, f"on_{event}")()
    assert told == ["training", "training", "optimizer step", "training", 1, {"is_watched": False}]
