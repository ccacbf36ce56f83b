"""Runs side by side."""

from __future__ import annotations

from collections.abc import Callable
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_summary import differences, summarise
from rlhf_cli.screen.comparison_table import show_comparison

MakeRun = Callable[..., RunFolder]


def config(weight: float = 1.0, seed: int = 0, **changes: Any) -> dict[str, Any]:
    return {
        "seed": seed,
        "rewards": {"format": {"weight": weight, "args": {}}},
        "run": {"name": f"run-{weight}-{seed}", "root": "runs"},
        **changes,
    }


@pytest.fixture
def runs(make_run: MakeRun) -> Callable[..., list[Any]]:
    def call(*configs: dict[str, Any], events: list[dict[str, Any]] | None = None) -> list[Any]:
        return [
            summarise(make_run(f"runs/exp/{number}", one, {"state": "finished", "step": 2}, events))
            for number, one in enumerate(configs)
        ]

    return call


def test_equal_runs_differ_in_nothing(runs: Callable[..., list[Any]]) -> None:
    assert differences(runs(config(), config())) == []


def test_a_name_is_no_difference(runs: Callable[..., list[Any]]) -> None:
    first, second = config(), config()
    second["run"] = {"name": "other", "root": "elsewhere"}
    assert differences(runs(first, second)) == []


def test_what_differs_in_the_order_of_the_configuration(runs: Callable[..., list[Any]]) -> None:
    assert differences(runs(config(), config(0.5), config(seed=1))) == ["seed", "rewards.format.weight"]


def test_a_key_only_one_run_has(runs: Callable[..., list[Any]]) -> None:
    found = differences(runs(config(), config(rewards={"format": {"weight": 1.0, "args": {"full": None}}})))
    assert found == ["rewards.format.args", "rewards.format.args.full"]


def test_one_run_differs_from_nothing(runs: Callable[..., list[Any]]) -> None:
    assert differences(runs(config())) == []


def test_start_and_end_of_every_reward(runs: Callable[..., list[Any]]) -> None:
    events = [
        {"step": 1, "time_s": 1, "reward": 0.25, "rewards/format/mean": 0.0},
        {"step": 2, "time_s": 2, "reward": 0.75, "rewards/format/mean": 1.0, "rewards/late/mean": 0.5},
        {"step": 2, "time_s": 2, "train_runtime": 2},
    ]
    summary = runs(config(), events=events)[0]
    assert summary.rewards == {"reward": (0.25, 0.75), "format": (0.0, 1.0), "late": (0.5, 0.5)}
    assert summary.settings["rewards.format.weight"] == 1.0
    assert summary.status.state == "finished"


def test_a_run_that_logged_nothing(runs: Callable[..., list[Any]]) -> None:
    assert runs(config())[0].rewards == {}


def shown(summaries: list[Any]) -> str:
    console = Console(file=StringIO(), width=160)
    show_comparison(console, summaries)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert isinstance(text, str)
    return text


def test_the_table(runs: Callable[..., list[Any]]) -> None:
    events = [{"step": step, "time_s": 1, "reward": 0.25 * step, "rewards/format/mean": 0.5} for step in (1, 2)]
    lines = shown(runs(config(1.0), config(0.5), events=events)).splitlines()
    assert lines[1].split() == ["#", "run", "state", "format.weight", "total", "format"]
    assert lines[2].split() == ["0", "0", "finished", "1.0", "0.250→0.500", "0.500→0.500"]
    assert lines[3].split()[:4] == ["1", "1", "finished", "0.5"]


def test_equal_runs_say_so(runs: Callable[..., list[Any]]) -> None:
    assert "the configurations do not differ" in shown(runs(config(), config()))


def test_runs_without_rewards_are_compared_by_loss_and_accuracy(runs: Callable[..., list[Any]]) -> None:
    """The held-out one where there is one: first and last evaluation, not their tenths."""
    events = [{"step": step, "time_s": 1, "loss": 1.0 / step, "accuracy": 0.1 * step} for step in (1, 2)]
    events += [{"step": step, "time_s": 1, "eval_accuracy": value} for step, value in ((1, 0.25), (2, 0.5), (3, 0.75))]
    summaries = runs(config(), config(seed=1), events=events)
    assert summaries[0].measures == {"loss": (1.0, 0.5), "accuracy, held out": (0.25, 0.75)}
    lines = shown(summaries).splitlines()
    assert lines[1].split() == ["#", "run", "state", "seed", "loss", "accuracy,", "held", "out"]
    assert lines[2].split()[-2:] == ["1.000→0.500", "0.250→0.750"]
    assert "weighted sum" not in lines[-1]


def test_policies_are_compared_by_their_held_out_greedy_total_too(runs: Callable[..., list[Any]]) -> None:
    events = [{"step": 1, "time_s": 1, "reward": 0.5, "loss": 0.1}]
    events += [{"step": step, "time_s": 1, "eval_greedy/total": 0.5 * step, "eval_loss": 0.0} for step in (1, 2)]
    (summary,) = runs(config(), events=events)
    assert summary.measures == {"greedy total, held out": (0.5, 1.0)}
    assert "held out: the first and the last evaluation" in " ".join(shown([summary]).split())
