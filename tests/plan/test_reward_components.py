"""Translation of a reward section into a component, and the order of evaluation."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.reward_sections import Reward
from rlhf_cli.errors import ConfigError
from rlhf_cli.plan.prepare import prepare
from rlhf_cli.plan.sources_and_components import KEEP_TIME, component, timeout_of
from rlhf_cli.plan.stack_building import reward_stack
from rlhf_cli.rewards.stack.aggregating import Schedule
from rlhf_cli.rewards.stack.component import Component, ScoreGate

INF = float("inf")
QUICK = "exp=quickstart"  # rewards: correct, format, brevity


def score(**batch: Any) -> list[float]:
    return []


def made(**section: Any) -> Any:
    return component("mine", Reward.model_validate({"fn": "a:b", **section}), score)


def test_a_component_has_the_rules_of_its_section() -> None:
    rules = {"offset": 2.0, "clip": (-1.0, 1.0), "normalize": "group", "on_error": 0.25, "timeout_s": 7.0}
    gate = {"by": "a", "at_least": 1}
    found = made(gate=gate, eager=True, spread="even", when="eval", **rules)
    gates = (ScoreGate("a", 1.0, INF, 0.0),)
    assert found == Component("mine", score, 0.0, gates, eager=True, spread="even", eval_only=True, **rules)
    turns = made(per="turn", weight={"start": 0.0, "end": 1.0, "steps": 9})
    assert turns == Component("mine", score, Schedule(0.0, 1.0, steps=9), timeout_s=900.0, per="turn")
    assert made(isolate=True).timeout_s is None  # its limit is one of a row


@pytest.mark.parametrize(
    ("section", "seconds"),
    [
        ({}, 900.0),
        ({"isolate": True}, 60.0),
        ({"timeout_s": 7, "isolate": True}, 7.0),
        ({"timeout_s": "off"}, None),
        ({"timeout_s": False}, None),  # what YAML makes of a bare off
        ({"timeout_s": None}, None),  # what older configurations say
        ({"fn": "rlhf_cli.rewards.code:code_runs"}, None),
        ({"fn": None, "model": "acme/judge"}, None),
        ({"fn": None, "model": "acme/judge", "timeout_s": 5}, 5.0),
    ],
)
def test_how_long_a_call_may_take(section: dict[str, Any], seconds: float | None) -> None:
    assert timeout_of(Reward.model_validate({"fn": "a:b", **section})) == seconds


def test_a_reward_model_is_loaded_as_its_section_says(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[tuple[str, dict[str, Any]]] = []

    class Scorer:
        def __init__(self, model: str, **given: Any) -> None:
            loaded.append((model, given))

        def __call__(self, **batch: Any) -> list[float]:
            return []

    monkeypatch.setattr("rlhf_cli.models.reward_model_scorer.RewardModelScorer", Scorer)
    section = {"model": "acme/judge", "batch_size": 3, "max_length": 64, "dtype": "bfloat16", "with_eos": True}
    rewards = {"own": {**section, "device": "meta"}, "trainings": {**section, "with_eos": False}}
    for passes, may_pack in (("auto", True), ("packed", True), ("trimmed", False), ("plain", False)):
        loaded.clear()
        trainer = {"name": "grpo", "trl": "GRPOTrainer", "passes": passes}
        nothing: dict[str, object] = {name: {} for name in ("launch", "track", "run")}
        tree = {"seed": 0, "trainer": trainer, "model": {"path": "x"}, "data": {"world": "toy_sums"}, **nothing}
        reward_stack(Experiment.model_validate({**tree, "rewards": rewards}), device="cpu").close()
        same = {"batch_size": 3, "max_length": 64, "dtype": "bfloat16", "may_pack": may_pack}
        assert loaded == [
            ("acme/judge", {**same, "device": "meta", "with_eos": True}),
            ("acme/judge", {**same, "device": "cpu", "with_eos": False}),
        ]


def test_ready_made_rewards_that_keep_their_own_time_are_those_with_a_time_for_each_row() -> None:
    from rlhf_cli.rewards.stack.reward_functions import import_function

    seen = set()
    for file in (Path(__file__).parents[2] / "conf" / "reward").glob("*.yaml"):
        fn = yaml.safe_load(file.read_text()).get("fn")
        if isinstance(fn, str) and fn.startswith("rlhf_cli."):
            takes_time = "timeout_s" in inspect.signature(import_function(fn, where="fn")).parameters
            assert fn.startswith(KEEP_TIME) == takes_time, fn
            seen.add(takes_time)
    assert seen == {True, False}


@pytest.mark.parametrize(
    ("test", "low", "high"),
    [
        ({"at_least": 0.5}, 0.5, INF),
        ({"at_least": 0.0}, 0.0, INF),
        ({"at_most": -1.0}, -INF, -1.0),
        ({"at_most": 0.0}, -INF, 0.0),
        ({"equals": 2.0}, 2.0, 2.0),
        ({"equals": 0.0}, 0.0, 0.0),
        ({"between": [-1, 1]}, -1.0, 1.0),
        ({"between": [0, 0]}, 0.0, 0.0),
    ],
    ids=str,
)
def test_gates(test: dict[str, Any], low: float, high: float) -> None:
    assert made(gate={"by": "a", **test}).gates == (ScoreGate("a", low, high, 0.0),)


def test_a_circle_is_told_as_it_goes() -> None:
    gates = {"correct": "format", "format": "brevity", "brevity": "correct"}
    circle = [f"rewards.{name}.gate={{by: {by}, at_least: 1}}" for name, by in gates.items()]
    with pytest.raises(ConfigError) as caught:
        prepare([QUICK, *circle], keep_run_names=True)
    error = caught.value
    assert error.what == "rewards wait for each other"
    assert all(name in str(error.got) for name in gates)
    assert str(error.where).endswith("(command line)")
