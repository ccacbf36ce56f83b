"""Runs from wandb's server, by a stand-in for its public API."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import pytest

from rlhf_cli.analysis.comparison.comparison import compare
from rlhf_cli.analysis.comparison.frames import read_wandb
from rlhf_cli.analysis.comparison.logged_run import named
from rlhf_cli.errors import RunError
from rlhf_cli.text.json_values import JsonTree
from tests.support.logged_runs import configured


@dataclass
class StoredRun:
    """As wandb gives it: names of transformers' callback, TRL's arguments beside the experiment, summary rows."""

    id: str
    config: JsonTree
    rows: list[dict[str, object]]
    state: str = "finished"
    name: str = "happy-cloud-7"

    def scan_history(self) -> Iterable[Mapping[str, object]]:
        return self.rows


@dataclass
class StandIn:
    stored: list[StoredRun]
    asked: list[tuple[str, object]] = field(default_factory=list)

    def runs(self, path: str, filters: dict[str, object] | None = None) -> list[StoredRun]:
        self.asked.append((path, filters))
        return self.stored


def stored(weight: float, seed: int, value: float, **named: str) -> StoredRun:
    config = {**configured(weight, seed), "learning_rate": 0.1 * seed, "output_dir": f"/x/{seed}"}
    rows: list[dict[str, object]] = [
        {"_step": 0, "train/global_step": 1, "train/rewards/correct/mean": value, "train/loss": None},
        {"_step": 1, "train/global_step": 1, "eval/greedy/total": 0.7},
        {"_step": 2, "train/global_step": 2, "train/rewards/correct/mean": value, "table": {"_type": "table"}},
    ]
    return StoredRun(f"{weight}-{seed}", config, rows, **named)


def test_a_group_is_compared_as_run_folders_are() -> None:
    api = StandIn([stored(weight, seed, 0.5 + weight) for weight in (0.0, 0.5) for seed in (0, 1)])
    runs = named(read_wandb("wandb:team/rlhf/quickstart/sweep", api=api))
    assert api.asked == [("team/rlhf", {"group": "quickstart/sweep"})]
    assert [run.name for run in runs] == [
        "weight=0,seed=0",
        "weight=0,seed=1",
        "weight=0.5,seed=0",
        "weight=0.5,seed=1",
    ]
    assert runs[0].place == "wandb:team/rlhf/0.0-0"
    assert list(runs[0].metrics) == ["rewards/correct/mean", "eval_greedy/total"]
    assert list(runs[0].metrics["rewards/correct/mean"].steps) == [1, 2]
    assert compare(runs).estimates["weight=0.5"]["correct"].mean == 1.0


def test_what_is_no_training_is_passed_over() -> None:
    """The report of a group is a run of wandb's, too, without a configuration."""
    api = StandIn([stored(0.0, 0, 0.5), StoredRun("report", {}, [{"_step": 0, "report": "html"}])])
    assert [run.place for run in read_wandb("wandb:a/b/c", api=api)] == ["wandb:a/b/0.0-0"]


@pytest.mark.parametrize("word", ["wandb:", "wandb:team", "wandb:team//group", "wandb://a"])
def test_two_parts_at_least(word: str) -> None:
    with pytest.raises(RunError, match="no runs of wandb's") as caught:
        read_wandb(word, api=StandIn([]))
    error = caught.value
    assert (error.got, error.expected) == (word, "wandb:entity/project or wandb:entity/project/group")
    assert str(error.hint).startswith("rlhf compare wandb:")


@pytest.mark.parametrize(("word", "hint"), [("wandb:a/b/c", "rlhf compare wandb:a/b"), ("wandb:a/b", None)])
def test_no_such_runs(word: str, hint: str | None) -> None:
    with pytest.raises(RunError, match="wandb has no such runs") as caught:
        read_wandb(word, api=StandIn([]))
    assert caught.value.got == word
    assert str(caught.value.hint).startswith(str(hint))


def test_what_is_read_of_a_run() -> None:
    """Steps under whatever name, and an event of a step in between; what stands beside the experiment is left out."""
    rows: list[dict[str, object]] = [
        {"_step": 3, "_runtime": 1.0, "step": 1, "loss": 0.5},
        {"global_step": 2, "train/loss": 0.25, "eval/loss": 0.75, "epoch": None},
        {"_step": 4, "_timestamp": 2.0},
        {"loss": 9.0},
        {"step": "x", "_step": 6.0, "loss": 0.125},
    ]
    config = {**configured(), "learning_rate": 0.1, "trainer": {"args": {"max_steps": 50}}}
    (run,) = read_wandb("wandb:a/b", api=StandIn([StoredRun("7", config, rows, state="running")]))
    assert (run.name, run.place, run.folder, run.state) == ("happy-cloud-7", "wandb:a/b/7", None, "running")
    assert (run.step, run.max_steps, run.reason, run.choices, run.trainer) == (6, 50, None, {}, "?")
    assert {name: list(one.values) for name, one in run.metrics.items()} == {
        "loss": [0.5, 0.25, 0.125],
        "eval_loss": [0.75],
    }
    assert list(run.metrics["loss"].steps) == [1, 2, 6]
    assert "learning_rate" not in run.settings
    assert (run.settings["trainer.args.max_steps"], run.weights) == (50, {"correct": 1.0, "brevity": 0.0})
    (odd,) = read_wandb(
        "wandb:a/b", api=StandIn([StoredRun("7", {"trainer": {"args": {"max_steps": "x"}}}, [], "odd")])
    )
    assert (odd.state, odd.max_steps, odd.step) == ("odd", None, 0)


def test_no_login_says_what_is_missing() -> None:
    class LoggedOut(StandIn):
        def runs(self, path: str, filters: dict[str, object] | None = None) -> list[StoredRun]:
            raise ValueError("api_key not configured (no-tty)")

    with pytest.raises(RunError, match="wandb cannot be asked") as error:
        read_wandb("wandb:a/b/c", api=LoggedOut([]))
    assert (error.value.where, error.value.got) == ("wandb:a/b/c", "api_key not configured (no-tty)")
    assert "wandb login" in str(error.value.expected)
    assert str(error.value.hint).startswith("rlhf compare runs/...")
