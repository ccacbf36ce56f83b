"""A run that a rule stops is saved, finished and whole; going on without the rule it is the run that had none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlhf_cli.cli import main
from rlhf_cli.runs.metrics_file import read_metrics, series
from rlhf_cli.runs.run_status import read_status
from tests.support.cut_runs import cut, events, is_same
from tests.support.small_runs import SMALL

pytestmark = pytest.mark.whole

BREVITY = "brevity > 0.5"
"""Answers of at most four tokens are 0.857 brief, or more: it holds in every log event."""
NO_GUARD = "guards.no_signal=off"


def test_it_is_saved_and_finished_at_the_step_that_fired(train, capsys: pytest.CaptureFixture[str]) -> None:
    """A rule for 2 log events in a row, one a step, fires at step 2 of 4."""
    code, folder = train(f"stop.when={BREVITY}", "stop.for=2", "trainer.args.max_steps=4", NO_GUARD)
    said = capsys.readouterr().out
    status = read_status(folder)
    assert code == 0
    assert (status.state, status.step, status.max_steps) == ("finished", 2, 4)
    assert status.last_checkpoint == "checkpoint-2"
    _, values = series(read_metrics(folder.metrics), "rewards/brevity/mean")
    assert status.reason == f"stopped by rule: brevity > 0.5: {values[0]:.4g}, {values[1]:.4g} at steps 1 to 2"
    assert (folder.model / "model.safetensors").is_file()
    assert said.count(status.reason) == 2  # when it fires, and in the panel at the end
    assert f"step 2: {status.reason}" in said

    assert main(["status", "--json", str(folder.path)]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["state"], row["step"], row["reason"]) == ("finished", 2, status.reason)
    assert main(["why", str(folder.path)]) == 0
    assert status.reason.partition(": ")[2] in " ".join(capsys.readouterr().out.split())

    before = (folder.model / "model.safetensors").stat().st_mtime_ns
    assert main(["resume", str(folder.path)]) == 0
    said = capsys.readouterr().out
    assert "nothing to do: the run has finished, at step 2" in said
    assert status.reason in said
    assert "stop=null" in said
    assert main(["train", *SMALL, "run.name=one", "run.resume=auto", f"stop.when={BREVITY}", "stop.for=2", NO_GUARD,
                 "trainer.args.max_steps=4"]) == 0  # fmt: skip
    assert "nothing to do" in capsys.readouterr().out
    assert (folder.model / "model.safetensors").stat().st_mtime_ns == before

    never_stopped = train("trainer.args.max_steps=4", NO_GUARD, name="two")[1]
    assert main(["resume", str(folder.path), "stop=null"]) == 0
    after = read_status(folder)
    assert (after.state, after.step, after.reason) == ("finished", 4, None)
    assert is_same(folder, never_stopped)
    assert json.dumps(events(folder)) == json.dumps(events(never_stopped))


def test_the_count_goes_on_where_a_run_was_killed(train, tmp_path: Path) -> None:
    """For 3 in a row, killed after the checkpoint of step 2: it fires at step 3, the first after it goes on."""
    words = [f"stop.when={BREVITY}", "stop.for=3", "trainer.args.save_steps=1", "trainer.args.save_total_limit=null"]
    code, whole = train(*words, "trainer.args.max_steps=5", NO_GUARD)
    assert (code, read_status(whole).step) == (0, 3)
    killed = cut(whole, 2, tmp_path / "copy")
    assert main(["resume", str(killed.path)]) == 0
    assert read_status(killed).reason == read_status(whole).reason
    assert [event["step"] for event in read_metrics(killed.metrics) if "train_runtime" not in event] == [1, 2, 3]
    assert is_same(killed, whole)


def test_negative_control_one_that_does_not_hold_or_holds_at_the_last_step_changes_nothing(train) -> None:
    _, without = train("trainer.args.max_steps=3", NO_GUARD, name="two")
    _, folder = train("stop={a: {when: 'brevity < 0.5'}, b: {when: 'brevity > 0.5', for: 3}}", NO_GUARD)
    status = read_status(folder)
    assert (status.state, status.step, status.reason) == ("finished", 3, None)
    assert is_same(folder, without)
