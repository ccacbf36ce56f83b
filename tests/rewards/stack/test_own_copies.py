"""What one reward writes into its arguments neither another reward nor the trainer sees."""

from __future__ import annotations

import copy
from typing import Any

import numpy
import pytest

from rlhf_cli.rewards.stack.calling import with_own_arguments
from rlhf_cli.rewards.stack.component import Component
from rlhf_cli.rewards.stack.reward_stack import RewardStack

SAID = {"role": "user", "content": "2+2=", "tool_calls": [{"name": "add", "arguments": {"a": 2}}]}


def batch() -> dict[str, Any]:
    return {
        "prompts": [[dict(copy.deepcopy(SAID))], [dict(copy.deepcopy(SAID))]],
        "completions": [[{"role": "assistant", "content": "4"}], [{"role": "assistant", "content": "5"}]],
        "completion_ids": [[1, 2], [3]],
        "answers": [["4", "four"], ["4"]],
        "nested": [({"deep": [1]},), ({"deep": [2]},)],
        "image": [numpy.zeros(2), numpy.ones(2)],
        "tags": [{"a"}, {"b"}],
    }


def spoil(**given: Any) -> list[float]:
    """Writes into everything it can reach."""
    given["prompts"][0][0]["tool_calls"][0]["arguments"]["a"] = "spoilt"
    given["completions"][1][0]["content"] = "spoilt"
    given["completions"].reverse()
    given["completion_ids"][0].clear()
    given["answers"][0].append("spoilt")
    given["nested"][1][0]["deep"].append("spoilt")
    given["image"][0][:] = 7
    given["tags"][0].add("spoilt")
    given["prompts"].pop()
    return [0.0, 0.0]


def seen_by(others: list[dict[str, Any]]) -> Any:
    def look(**given: Any) -> list[float]:
        others.append(copy.deepcopy({name: given[name] for name in batch()}))
        return [1.0, 2.0]

    return look


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return str(one) == str(other)  # arrays have no truth of their own


@pytest.mark.fault(34)
def test_other_rewards_and_the_trainer_see_unchanged_arguments() -> None:
    given, others = batch(), list[dict[str, Any]]()
    stack = RewardStack([Component("spoil", spoil), Component("look", seen_by(others))])
    outcomes = stack.evaluate(**given)
    stack.close()
    assert same(others[0], batch())
    assert same(given, batch())
    assert outcomes["look"].raw == [1.0, 2.0]


def test_a_retried_batch_gets_unchanged_arguments() -> None:
    """Row by row, after the function has spoilt the batch and failed."""
    others: list[dict[str, Any]] = []

    def spoil_and_fail(**given: Any) -> list[float]:
        others.append(copy.deepcopy(given))
        if len(given["prompts"]) > 1:
            spoil(**given)
            raise ValueError("after all")
        return [1.0]

    stack = RewardStack([Component("spoil", spoil_and_fail, on_error="exclude")])
    assert stack.evaluate(**batch())["spoil"].raw == [1.0, 1.0]
    stack.close()
    assert [row["answers"] for row in others[1:]] == [[["4", "four"]], [["4"]]]


def test_immutable_values_and_the_trainers_own_are_shared() -> None:
    """That is what makes it cheap, and what lets a reward log."""

    class State:
        pass

    given = {**batch(), "trainer_state": State(), "environments": [State()], "log_extra": print, "texts": ["a" * 9]}
    given["objects"] = [State()]
    own = with_own_arguments(given)
    assert own["trainer_state"] is given["trainer_state"]
    assert own["environments"] is given["environments"]
    assert own["log_extra"] is print
    assert own["texts"] is not given["texts"]
    assert own["texts"][0] is given["texts"][0]
    assert own["objects"] is not given["objects"]
    assert own["objects"][0] is given["objects"][0]  # it cannot be copied


@pytest.mark.fault(34)
def test_negative_control_the_function_changes_its_arguments() -> None:
    given = batch()
    spoil(**given)
    assert not same(given, batch())
