"""A reward is called with what its signature has, and refused where it takes what no reward is given."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest

from rlhf_cli.errors import RewardError
from rlhf_cli.rewards.stack.reward_functions import required_columns, resolve
from rlhf_cli.rewards.stack.reward_stack import runs_elsewhere

Write = Callable[[str, str], Path]

MINE = """
import functools

def mlx(prompts, completions, answer, types=None):  # mlx-lm-lora's shape
    return [float(right in said) for right, said in zip(answer, completions)]

def by_place(completions, /, answer):
    return [float(right in said) for right, said in zip(answer, completions)]

def by_name(completions, *, answer):
    return [float(right in said) for right, said in zip(answer, completions)]

class Scorer:
    def __call__(self, completions, answer):
        return by_name(completions, answer=answer)

    def score(self, completions, answer):
        return self(completions, answer)

    @staticmethod
    def still(completions, answer):
        return by_name(completions, answer=answer)

class Later:
    async def __call__(self, completions, answer):
        return by_name(completions, answer=answer)

async def later(completions, answer):
    return by_name(completions, answer=answer)

def make():
    def reward(completions, answer):
        return by_name(completions, answer=answer)
    return reward

inst = Scorer()
later_inst = Later()
part = functools.partial(mlx, types=1)

def compute_score(data_source, solution_str, ground_truth, extra_info=None):  # verl
    return float(solution_str == ground_truth)

def reward_func(queries, prompts, labels):  # OpenRLHF
    return [1.0] * len(queries)

def one(completion, answer, **kwargs):
    return float(completion == answer)

def singular(prompt, completions):
    return [1.0] * len(completions)

def ours(completions, response, **columns):  # `response` is a column of the data
    return [1.0] * len(completions)

def nothing(*args):
    return [1.0]
"""


@pytest.fixture(autouse=True)
def mine(write: Write, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return write("mine.py", MINE)


BATCH: dict[str, Any] = {
    **{"prompts": ["2+3=", "1+1="], "completions": ["5", "3"], "completion_ids": [[1], [2]]},
    **{"answer": ["5", "2"], "level": [1, 2], "trainer_state": None, "log_metric": print, "log_extra": print},
}
CALLED = ["mlx", "by_place", "by_name", "Scorer", "inst", "inst.score", "Scorer.still", "make", "part"]


@pytest.mark.parametrize("name", [*CALLED, "later", "Later", "later_inst"])
def test_is_called_with_what_it_takes(name: str) -> None:
    reward = resolve(f"./mine.py:{name}", {}, where="x")
    assert required_columns(reward) == ["answer"]
    returned = reward(**BATCH)
    is_async = "later" in name.lower()
    assert runs_elsewhere(reward) is is_async
    if is_async:

        async def awaited() -> object:
            return await cast(Awaitable[object], returned)

        returned = asyncio.run(awaited())
    assert returned == [1.0, 0.0]


@pytest.mark.parametrize(
    ("name", "taken"),
    [("compute_score", "solution_str"), ("reward_func", "queries"), ("one", "completion"), ("singular", "prompt")],
)
def test_an_argument_of_another_tool_is_refused(name: str, taken: str) -> None:
    with pytest.raises(RewardError) as caught:
        resolve(f"./mine.py:{name}", {}, where="x")
    assert repr(taken) in caught.value.what
    assert (caught.value.where, caught.value.hint) == ("x", None)
    assert str(caught.value.advice).startswith("def score(completions")


def test_a_column_with_such_a_name_is_accepted() -> None:
    assert required_columns(resolve("./mine.py:ours", {}, where="x")) == ["response"]


@pytest.mark.parametrize(
    ("fn", "told"),
    [("./mine.py:nothing", "completions"), ("./mine.py:Scorer.score", "Scorer()"), ("builtins:max", "takes")],
)
def test_what_cannot_be_called_is_refused(fn: str, told: str) -> None:
    with pytest.raises(RewardError) as caught:
        resolve(fn, {}, where="x")
    assert told in str(caught.value)
