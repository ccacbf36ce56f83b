"""Two logs that should be equal are compared up to their first difference, without clocks."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from rlhf_cli.analysis.reproducibility import NOT_LOGGED, Reproduction, compare_logs
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.tables.metrics import is_of_the_clock

Log = list[dict[str, Any]]


def log(num_steps: int = 6) -> Log:
    """Return a log of rewards with evaluations after steps 3 and 6, and the line that summarises the call."""
    events: Log = []
    for step in range(1, num_steps + 1):
        own = {"loss": 0.1 / step, "grad_norm": 1.0, "learning_rate": 1e-3, "reward": step / 7}
        of_reward = {"rewards/correct/mean": step / 9, "rewards/correct/seconds": 0.01 * step, "kl": None}
        events.append({"step": step, "time_s": 1.1 * step, **own, **of_reward, "step_time": 0.3})
        if step % 3 == 0:
            events.append({"step": step, "time_s": 1.1 * step, "eval_loss": 0.2, "eval_runtime": 3.0})
    return [*events, {"step": num_steps, "time_s": 9.0, "train_runtime": 9.0, "train_loss": 0.05}]


def changed(place: int, **values: object) -> Log:
    events = copy.deepcopy(log())
    events[place] |= values
    return events


def test_clocks_are_not_compared() -> None:
    other = log()
    for event in other:
        event |= {name: 99.0 for name in event if is_of_the_clock(name)}
    compared = compare_logs(log(), other)
    assert compared.difference is None
    assert (compared.last_step, compared.equal_steps, compared.num_events) == (6, 6, 8)
    # Six events with loss, grad_norm, learning_rate, reward, the reward's mean and kl; two with an evaluation's loss.
    assert compared.num_numbers == 6 * 6 + 2


def test_the_last_bit_counts() -> None:
    value = log()[4]["reward"]
    compared = compare_logs(log(), changed(4, reward=value * (1 + 2**-52)))
    assert compared.difference is not None
    assert (compared.difference.step, compared.difference.metric) == (4, "reward")


def test_null_is_equal_only_to_null() -> None:
    compared = compare_logs(log(), changed(0, kl=0.0))
    assert compared.difference is not None
    assert (compared.difference.before, compared.difference.after) == (None, 0.0)
    lacking = log()
    del lacking[0]["kl"]
    found = compare_logs(log(), lacking).difference
    assert found is not None
    assert (found.metric, found.before, found.after) == ("kl", None, NOT_LOGGED)


def test_a_run_that_ended_earlier() -> None:
    compared = compare_logs(log(), [event for event in log() if event["step"] < 5])
    assert compared.difference is not None
    assert (compared.difference.step, compared.difference.metric) == (5, "log event")
    assert compare_logs(log(), [event for event in log() if event["step"] < 5], up_to=4).difference is None


def test_an_evaluation_that_differs_with_its_step_is_named_after_it() -> None:
    other = changed(3, eval_loss=0.25, eval_reward=1.0)
    other[2] |= {"loss": 5.0}
    found = compare_logs(log(), other)
    assert found.difference is not None
    assert (found.difference.step, found.difference.metric) == (3, "loss")
    assert found.difference.others == ("eval_reward", "eval_loss")
    assert (found.last_step, found.num_events, found.equal_steps) == (3, 4, 2)


def test_events_are_compared_by_kind_and_position() -> None:
    """An evaluation may be logged before its step; events of one kind are compared in their order."""
    swapped = log()
    swapped[2], swapped[3] = swapped[3], swapped[2]
    assert compare_logs(log(), swapped).difference is None
    one = [{"step": 1, "loss": 1.0}, {"step": 1, "loss": 2.0}, {"step": 1, "loss": 3.0}]
    other = [{"step": 1, "loss": 1.0}, {"step": 1, "loss": 9.0}, {"step": 1, "loss": 8.0}]
    found = compare_logs(one, other)
    assert found.difference is not None
    assert (found.difference.before, found.difference.after, found.difference.others) == (2.0, 9.0, ("loss",))
    assert (found.num_events, found.num_numbers) == (3, 3)


@pytest.mark.parametrize("last", [{"train_runtime": 3.0}, {"train_loss": 0.5}])
def test_the_summary_of_a_call_is_not_compared(last: dict[str, float]) -> None:
    found = compare_logs([{"step": 1, "loss": 1.0}, {"step": 1, **last}], [{"step": 1, "loss": 1.0}])
    assert (found.difference, found.num_events) == (None, 1)
    resumed = compare_logs([{"step": 1, **last}, {"step": 2, "loss": 1.0}], [{"step": 2, "loss": 2.0}]).difference
    assert resumed is not None
    assert (resumed.before, resumed.after) == (1.0, 2.0)


def test_empty_logs_are_equal_and_runs_only_with_equal_weights(tmp_path: Path) -> None:
    logs = compare_logs([], [])
    assert (logs.last_step, logs.equal_steps, logs.difference) == (0, 0, None)
    run = RunFolder(tmp_path)
    assert Reproduction(run, run, logs, {"model": ("a", "a")}, ()).is_equal
    assert not Reproduction(run, run, logs, {"model": ("a", "a"), "critic": ("a", "b")}, ()).is_equal


def test_metrics_are_named_in_the_order_of_a_step() -> None:
    """Unknown metrics come last, an evaluation's metric has the place of its name, ties keep their order."""
    names = [
        "zzz",
        "grad_norm",
        "critic/loss",
        "loss",
        "entropy",
        "kl",
        "reward_std",
        "reward",
        "rewards/a/mean",
        "epoch",
    ]
    found = compare_logs([{"step": 1, **dict.fromkeys(names, 0.0)}], [{"step": 1, **dict.fromkeys(names, 1.0)}])
    assert found.difference is not None
    expected = ["epoch", "rewards/a/mean", "reward_std", "reward", "kl", "entropy", "loss", "critic/loss", "grad_norm"]
    assert [found.difference.metric, *found.difference.others] == [*expected, "zzz"]


def test_the_table_of_clocks_has_all_that_differs_between_two_equal_runs(
    train, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two equal runs differ in clocks only, and in every clock that they log."""
    words = ["trainer.args.eval_strategy=steps", "trainer.args.eval_steps=3", "data.eval.fraction=0.1"]
    logs = [
        [json.loads(line) for line in train(*words, name=name)[1].metrics.read_text().splitlines()]
        for name in ("one", "two")
    ]
    differing = {
        name
        for one, other in zip(*logs, strict=True)
        for name in one.keys() | other.keys()
        if one.get(name, "-") != other.get(name, "-")
    }
    assert {name for name in differing if not is_of_the_clock(name)} == set()
    assert {"time_s", "step_time", "rewards/correct/seconds", "eval_runtime"} <= differing
