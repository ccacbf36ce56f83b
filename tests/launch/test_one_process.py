"""A run from command to folder: what is written, where its seconds go, what a failure leaves, what is resumed."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow.parquet
import pytest

from rlhf_cli.cli import main
from rlhf_cli.runs.metrics_file import read_metrics, series
from rlhf_cli.runs.run_status import read_status
from tests.support.cut_runs import is_same


def test_a_finished_run_holds_what_the_design_says(train, capsys: pytest.CaptureFixture[str]) -> None:
    before = dict(os.environ)
    code, folder = train("trainer.args.save_steps=2")
    assert code == 0
    assert dict(os.environ) == before
    assert capsys.readouterr().out.rstrip().endswith("run folder: runs/quickstart/one")
    assert read_status(folder).state == "finished"
    assert read_status(folder).step == 3
    assert [path.name for path in sorted(folder.checkpoints.iterdir())] == ["checkpoint-2", "checkpoint-3"]
    events = read_metrics(folder.metrics)
    assert [event["step"] for event in events] == [1, 2, 3, 3]
    for metric in ("loss", "reward", "rewards/correct/mean", "rewards/format/std", "completions/mean_length", "time_s"):
        assert metric in events[0], metric
    table = pyarrow.parquet.read_table(folder.path / "completions" / "completions_00003.parquet")
    assert {"prompt", "completion", "correct", "format", "brevity", "a", "b", "answer", "advantage"} <= set(
        table.column_names
    )
    assert table.num_rows == 8
    assert {path.name for path in folder.path.iterdir()} == {
        *("checkpoints", "completions", "config.yaml", "log.txt", "metrics.jsonl", "model"),
        *("provenance.json", "status.json"),
        ".writer.lock",  # to remove a lock's file while another waits for it would let two in
    }


@pytest.mark.fault(30)
def test_a_reward_that_raises_ends_the_run_as_failed(train, workplace: Path, capsys) -> None:
    (workplace / "mine.py").write_text("def bad(completions, **_):\n    raise ZeroDivisionError('judge fell over')\n")
    code, folder = train("rewards.mine.fn=./mine.py:bad", "rewards.mine.trial=false")
    assert code == 1
    status = read_status(folder)
    assert (status.state, status.failing_rank) == ("failed", 0)
    assert "judge fell over" in status.reason
    told = capsys.readouterr().err
    assert "ZeroDivisionError: judge fell over" in told
    assert told.rstrip().endswith("run folder: runs/quickstart/one")
    assert not folder.model.exists()


def test_a_value_trl_refuses_is_told_before_a_model_is_loaded(train, capsys) -> None:
    code, folder = train(*(f"trainer.args.vllm_importance_sampling_clip_{end}" for end in ("min=3.0", "max=2.0")))
    assert code == 2
    assert "must be less than" in capsys.readouterr().err
    assert read_status(folder).state == "failed"


@pytest.mark.fault(10)
def test_a_run_of_that_name_is_not_overwritten_and_resume_auto_of_it_does_nothing(train, capsys) -> None:
    _, folder = train()
    before = {path: path.stat().st_mtime_ns for path in folder.path.rglob("*")}
    assert train()[0] == 2
    assert "exists already" in capsys.readouterr().err
    assert train("run.resume=auto")[0] == 0
    assert "has finished" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in folder.path.rglob("*")} == before


@pytest.mark.fault(20)
def test_an_interrupted_run_goes_on_from_its_checkpoint(train, workplace: Path) -> None:
    """Stopped in step 3 of 4, resumed from the checkpoint of step 2: same losses as the run that never stopped."""
    (workplace / "mine.py").write_text(
        "import os, signal\n"
        "def stop(completions, trainer_state, **kwargs):\n"
        "    if trainer_state.global_step == 2 and os.path.exists('stop'):\n"
        "        signal.raise_signal(signal.SIGINT)\n"  # Ctrl-C; to raise its exception is a failure of the reward
        "    return [0.0] * len(completions)\n"
    )
    words = ("rewards.mine.fn=./mine.py:stop", "trainer.args.max_steps=4", "trainer.args.save_steps=2")
    _, whole = train(*words, name="whole")
    (workplace / "stop").touch()
    code, folder = train(*words, name="stopped")
    assert code == 75
    assert read_status(folder).state == "preempted"
    (workplace / "stop").unlink()
    assert main(["resume", str(folder.path)]) == 0
    assert read_status(folder).state == "finished"
    resumed, never_stopped = read_metrics(folder.metrics), read_metrics(whole.metrics)
    assert [event["step"] for event in resumed] == [1, 2, 3, 4, 4]
    assert series(resumed, "loss") == series(never_stopped, "loss")
    assert series(resumed, "reward") == series(never_stopped, "reward")


@pytest.mark.fault(38)
def test_a_policy_that_never_writes_its_end_is_told(train, says, capsys) -> None:
    says([5, 5, 5, 5])
    code, folder = train("guards.no_signal=off", "trainer.args.max_steps=10")
    assert code == 0
    warning = "100% of the completions are truncated at 4 tokens"
    assert warning in " ".join(capsys.readouterr().out.split())
    assert warning in folder.log.read_text()
    assert read_status(folder).warnings >= 1


SLOW_S = 0.15
SLOW = f"""\
import time

def slow(completions, **_):
    time.sleep({SLOW_S})
    return [float(len(c)) for c in completions]
"""


def seconds(event: dict[str, float]) -> dict[str, float]:
    prefix = "time/share/"
    shares = {name.removeprefix(prefix): value for name, value in event.items() if name.startswith(prefix)}
    return {name: share * event["time/elapsed_s"] for name, share in shares.items()}


def test_seconds_go_to_what_took_them(train, workplace: Path) -> None:
    """The reward sleeps SLOW_S a step; all shares of every event add up to 1; two log events after one another have the
    seconds between them. Negative controls: phases that did not run have no time, and without a profile nothing logged
    of it, while losses and weights are the same to the last digit.
    """
    (workplace / "mine.py").write_text(SLOW)
    words = ["~rewards", "+rewards.slow.fn=./mine.py:slow", "trainer.args.beta=0.05", "trainer.args.save_steps=2"]
    code, folder = train(*words)
    assert code == 0
    *events, last = read_metrics(folder.metrics)
    assert len(events) == 3
    for event in [*events, last]:
        assert sum(seconds(event).values()) == pytest.approx(event["time/elapsed_s"], rel=1e-4)
    for event in events:
        took = seconds(event)
        assert 0.99 * SLOW_S <= event["rewards/slow/seconds"] <= took["reward/slow"]
        assert all(took[name] > 0 for name in ("generation", "forward", "backward", "optimizer", "checks", "logging"))
        assert took["reference_logps"] > 0
        assert took["old_logps"] == 0  # each rollout is used once, so they are not computed
        assert took["evaluation"] == 0
    assert seconds(events[2])["saving"] > 0  # after step 2, before the event of step 3
    assert seconds(events[1])["saving"] == 0
    between = events[2]["time_s"] - events[1]["time_s"]
    assert events[2]["time/elapsed_s"] == pytest.approx(between, rel=0.2)
    assert 0 < events[0]["passes/slots"] < events[0]["passes/tokens"]  # a group's prompt is computed once
    _, without = train(*words, "profile=off", name="without")
    logged = read_metrics(without.metrics)
    assert not any(name.startswith(("time/", "passes/slots", "passes/tokens")) for event in logged for name in event)
    assert [event["loss"] for event in events] == [event["loss"] for event in logged[:3]]
    assert is_same(folder, without)
