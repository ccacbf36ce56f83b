"""Wrap tools, environments and rollout functions: limits, counts, errors. The numbers are counted by hand."""

from __future__ import annotations

import asyncio
import inspect
import os
import random
import signal
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rlhf_cli.errors import Interrupted, RewardError, RewardFailed
from rlhf_cli.process import stopped_early
from rlhf_cli.tools_and_environments import (
    Counts,
    EnvironmentScore,
    Interactions,
    Limits,
    ToolError,
    checked_rollout,
    ending_of,
    environment_class,
    environment_factory,
    failed_calls,
    limited,
    tells_of_error,
    tools_of,
)
from rlhf_cli.truncation import Ending
from tests.support.reward_bench import raises


def add(a: int, b: int) -> int:
    return a + b


async def later(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "done"


async def blocks() -> None:
    time.sleep(3)  # no await, so the loop cannot cancel it


class Panic(BaseException):
    """As pyo3 raises it for a library in Rust."""


async def panics_later() -> None:
    raise Panic("in Rust")


class Broken:
    def __str__(self) -> str:
        raise KeyboardInterrupt


class Slow:
    def __str__(self) -> str:
        time.sleep(3)
        return "slow"


def tool(function: Callable[..., Any], **limits: Any) -> tuple[Callable[..., Any], Counts]:
    counts = Counts()
    return limited(function, "calc", "tools.calc", Limits(**limits), counts), counts


def test_a_result_is_text_and_counted() -> None:
    wrapped, counts = tool(add)
    assert wrapped(a=2, b=3) == "5"
    assert wrapped.__name__ == "calc"
    assert str(inspect.signature(wrapped)) == str(inspect.signature(add))  # the chat template reads it
    assert counts.drain() == {"calc": [1, 0, 0]}
    assert counts.drain() == {}


@pytest.mark.parametrize(
    ("function", "told", "is_late"),
    [
        (raises(ZeroDivisionError("by zero")), "ZeroDivisionError: by zero", False),
        (raises(SystemExit(3)), "SystemExit: 3", False),
        (raises(ValueError("\udc80")), "ValueError: ?", False),  # no tokenizer takes half a character
        (raises(Panic("in Rust")), "Panic: in Rust", False),
        (panics_later, "Panic: in Rust", False),
        (raises(KeyboardInterrupt()), "KeyboardInterrupt: ", False),
        (raises(asyncio.CancelledError()), "CancelledError: ", False),
        (lambda: Broken(), "KeyboardInterrupt: ", False),
        (lambda: time.sleep(3), "no answer within 0.1 s", True),
        (lambda: Slow(), "no answer within 0.1 s", True),
        (lambda: later(5.0), "no answer within 0.1 s", True),
        (blocks, "no answer: it blocks the event loop, because it waits without `await`", True),
        (lambda: object(), "the result is an object of the class object, which is no text", False),
        (lambda by: by, "wrong arguments: missing a required argument: 'by'", False),
    ],
)
def test_an_error_is_told_and_counted(function: Any, told: str, is_late: bool) -> None:
    wrapped, counts = tool(function, timeout_s=0.1)
    with stopped_early(), pytest.raises(ToolError) as caught:
        wrapped()
    assert str(caught.value) == told
    assert counts.drain() == {"calc": [1, 1, int(is_late)]}
    message = {"role": "tool", "content": str({"error": told})}
    assert tells_of_error(message)
    rollout = [{"role": "assistant", "tool_calls": [{}]}, message, {"role": "assistant"}]
    assert ending_of(rollout, is_cut=False, max_calls=2) is (Ending.TIMEOUT if is_late else Ending.TOOL_ERROR)
    assert not tells_of_error({"role": "assistant", "content": message["content"]})


def test_on_error_raise_ends_the_run_after_the_round() -> None:
    wrapped, counts = tool(raises(ZeroDivisionError("by zero")), on_error="raise")
    with pytest.raises(ToolError):
        wrapped()
    with pytest.raises(RewardFailed) as caught:
        counts.drain()
    assert (caught.value.where, type(caught.value.__cause__)) == ("tools.calc", ZeroDivisionError)


def test_an_async_tool_is_awaited_on_a_loop_that_is_replaced_when_it_is_blocked() -> None:
    wrapped, _ = tool(later)
    assert wrapped(seconds=0.0) == "done"
    assert tool(lambda: later(0.0))[0]() == "done"  # as a decorator of an async function returns it
    blocking, counts = tool(blocks, timeout_s=0.05)
    with pytest.raises(ToolError):
        blocking()
    assert limited(later, "later", "tools.later", Limits(), counts)(seconds=0.0) == "done"


def test_a_long_result_and_a_long_error_are_cut() -> None:
    assert tool(lambda: "x" * 1_000_000, max_characters=100)[0]() == "x" * 97 + "..."
    with pytest.raises(ToolError) as caught:
        tool(raises(ValueError("y" * 10_000)), max_characters=100)[0]()
    assert len(str(caught.value)) == 100


def test_a_result_is_text_or_parts_with_images_and_has_the_same_order_in_any_process() -> None:
    assert tool(lambda: "\udc80 1")[0]() == "? 1"
    text, image = {"type": "text", "text": "x" * 99}, {"type": "image", "image": "a.png"}
    assert tool(lambda: [text, text], max_characters=20)[0]() == "x" * 17 + "..."
    assert tool(lambda: [text, image])[0]() == [text, image]
    assert tool(lambda: [{"type": "cat"}])[0]() == '[{"type": "cat"}]'  # rows that have a column `type`
    assert tool(lambda: [{"type": ["a", "null"]}])[0]() == '[{"type": ["a", "null"]}]'  # part of a JSON schema
    assert tool(lambda: {"b", "a"})[0]() == "['a', 'b']"


def test_a_tool_does_not_change_the_call_in_the_conversation() -> None:
    def grows(items: list[int]) -> int:
        items.append(9)
        return len(items)

    given = [1]
    assert tool(grows)[0](items=given) == "2"
    assert given == [1]


def test_random_numbers_of_a_tool_depend_on_its_arguments_alone() -> None:
    def roll(sides: int) -> int:
        return random.randint(1, sides)

    wrapped, _ = tool(roll)
    random.seed(1)
    expected = random.random()
    random.seed(1)
    first = wrapped(sides=10**9)
    assert random.random() == expected  # the training's stream continues as if no tool had been called
    assert wrapped(sides=10**9) == first


class Maze:
    """A corridor of three fields."""

    def __init__(self, size: int = 3) -> None:
        self.size, self.at = size, 0

    def reset(self, start: int = 0, **row: object) -> str:
        self.at = start
        return f"You are at {self.look()}."

    def look(self) -> int:
        return self.at

    def step(self, by: int) -> str:
        if by > 1:
            raise ValueError("too far")
        self.at += by
        return f"at {self.look()}, {random.random()}"

    @staticmethod
    def rule(of: int) -> str:
        return f"rule {of}"

    async def wait(self) -> str:
        return await self.waited()

    async def waited(self) -> str:
        return f"at {self.look()}"

    def get_reward(self) -> float:
        return float(self.look() >= self.size - 1)


def maze(**limits: Any) -> tuple[Any, Counts]:
    counts = Counts()
    wrapped = environment_class(Maze, "environment", Limits(**limits), counts, scored_by=frozenset({"get_reward"}))
    return wrapped(size=3), counts


def test_an_environment_has_tools_and_no_reward_for_trl() -> None:
    environment, counts = maze()
    assert sorted(tools_of(type(environment))) == ["look", "rule", "step", "wait", "waited"]
    functions = dict(inspect.getmembers(type(environment), predicate=inspect.isfunction))
    assert "get_reward" not in functions  # TRL would add a column with weight 1
    assert environment.reset(start=0) == "You are at 0."
    assert environment.step(by=1).startswith("at 1")
    with pytest.raises(ToolError, match="too far"):
        environment.step(by=2)
    # what the environment calls of itself has no limits and is not counted
    assert counts.drain() == {"step": [2, 1, 0]}
    assert (environment.rule(of=1), environment.wait()) == ("rule 1", "at 1")
    assert counts.drain() == {"rule": [1, 0, 0], "wait": [1, 0, 0]}
    assert environment.get_reward() == 0.0
    environment.step(by=1)
    score = EnvironmentScore("get_reward", "rewards.solved.environment")
    assert score(["", ""], [environment, object()]) == [1.0, None]


def test_each_constructed_environment_has_random_numbers_of_its_own_and_leaves_the_training_s() -> None:
    class Drawn(Maze):
        def __init__(self) -> None:
            random.seed(random.random())
            self.secret = random.random()

    def secrets(seed: int) -> list[float]:
        wrapped = environment_class(Drawn, "environment", Limits(), Counts())
        make = environment_factory(Drawn, {}, "environment", wrapped)
        random.seed(seed)
        before = random.getstate()
        made: list[Any] = [make() for _ in range(3)]
        assert random.getstate() == before
        return [one.secret for one in made]

    assert secrets(1) == secrets(2)
    assert len(set(secrets(1))) == 3


def test_the_same_rollout_has_the_same_random_numbers_and_each_call_its_own() -> None:
    def walk(start: int) -> list[str]:
        environment, _ = maze()
        environment.reset(start=start)
        return [environment.step(by=0), environment.step(by=0)]

    assert walk(0) == walk(0)
    assert walk(0) != walk(1)
    assert len(set(walk(0))) == 2


@pytest.mark.parametrize(
    ("reset", "got"), [(raises(OSError("no map")), "OSError: no map"), (lambda: object(), "the result is an object of")]
)
def test_a_reset_that_raises_or_returns_no_text_ends_the_run(reset: Callable[[], object], got: str) -> None:
    class Broken(Maze):
        def reset(self, start: int = 0, **row: object) -> Any:
            return reset()

    wrapped: Any = environment_class(Broken, "environment", Limits(), Counts())
    with pytest.raises(RewardFailed) as caught:
        wrapped().reset(prompt="x")
    assert caught.value.where == "environment"
    assert str(caught.value.got).startswith(got)


def test_a_reset_and_a_score_may_be_async_and_a_score_needs_environments() -> None:
    class Later:
        async def reset(self, start: int = 0, **row: object) -> Any:
            return ["a", start]

        async def score(self) -> float:
            return 0.5

    wrapped: Any = environment_class(Later, "environment", Limits(), Counts())
    assert wrapped().reset(start=1) == '["a", 1]'  # a list, but of no parts that a chat template knows
    score: Any = EnvironmentScore("score", "rewards.solved.environment")(["a", "b"], [Later(), object()])
    assert asyncio.run(score) == [0.5, None]
    with pytest.raises(RewardError) as caught:
        EnvironmentScore("get_reward", "rewards.solved.environment")(["a"])
    assert caught.value.where == "rewards.solved.environment"


SOUND: dict[str, Any] = {"prompt_ids": [[1], [1]], "completion_ids": [[2, 3], [4]], "logprobs": None, "s1": ["a", "b"]}


@pytest.mark.parametrize(
    ("output", "named"),
    [
        (SOUND, None),
        ({**SOUND, "env_mask": [[1, 0], [1]], "note": "one for all"}, None),
        ([1], "no dict"),
        ({"prompt_ids": []}, "no 'completion_ids'"),
        ({**SOUND, "s1": ["a"]}, "s1"),
        ({**SOUND, "s1": None}, "s1"),
        ({**SOUND, "completions": ["a", "b"]}, "completions"),  # TRL's own call would have two
        ({**SOUND, "completion_ids": [[2, 3], []]}, "without tokens"),
        ({**SOUND, "prompt_ids": [[1], []]}, "without tokens"),
        ({**SOUND, "completion_ids": [[2, 3], [4] * 12]}, "more tokens"),
        *(
            ({**SOUND, "completion_ids": ids}, "completion_ids")
            for ids in ([[2, 3]], [[2, 3.5], [4]], [["a", "b"], ["c"]], "text", 5, [[2, 9], [4]])
        ),
        ({**SOUND, "prompt_ids": [[1], [-1]]}, "prompt_ids"),
        *(
            ({**SOUND, "logprobs": numbers}, "logprobs")
            for numbers in ([[-1.0, float("nan")], [-1.0]], [[-1.0, None], [-1.0]], [[0.0], [0.0]])
        ),
        *(({**SOUND, "env_mask": mask}, "env_mask") for mask in ([[1, 2], [1]], [[1], [1]])),
    ],
)
def test_a_rollout_function_returns_a_dict_with_one_row_per_prompt(output: Any, named: str | None) -> None:
    rollout = checked_rollout(lambda prompts, trainer: output, ["s1"], "rollout.fn")
    config = SimpleNamespace(get_text_config=lambda: SimpleNamespace(vocab_size=9, max_position_embeddings=12))
    trainer = SimpleNamespace(model=SimpleNamespace(module=SimpleNamespace(config=config)))  # as DDP wraps it
    if named is None:
        assert rollout([1, 2], trainer) == output
        return
    with pytest.raises(RewardError, match=named):
        rollout([1, 2], trainer)


def test_a_rollout_function_returns_every_column_and_is_held_to_no_model_that_is_unknown() -> None:
    with pytest.raises(RewardError, match="no 's2'"):
        checked_rollout(lambda prompts, trainer: SOUND, ["s1", "s2"], "rollout.fn")([1, 2], None)
    assert checked_rollout(lambda prompts, trainer: SOUND, ["s1"], "rollout.fn")([1, 2], None) == SOUND


LEAVING = [SystemExit(0), KeyboardInterrupt(), asyncio.CancelledError(), Panic("in Rust")]


@pytest.mark.parametrize("error", LEAVING, ids=repr)
def test_no_function_can_end_the_process_as_if_all_were_well(error: BaseException) -> None:
    """Neither a rollout function, nor the constructor or `reset` of an environment; Ctrl-C is another exception."""
    leave = raises(error)

    class Leaves:
        def __init__(self, is_late: bool) -> None:
            _ = is_late or leave()

        def reset(self, **row: object) -> None:
            leave()

    wrapped: Any = environment_class(Leaves, "environment", Limits(), Counts())
    late = environment_factory(Leaves, {"is_late": True}, "environment", wrapped)()
    calls = (
        lambda: checked_rollout(lambda prompts, trainer: leave(), [], "rollout.fn")([1], None),
        environment_factory(Leaves, {"is_late": False}, "environment", wrapped),
        lambda: cast(Any, late).reset(),
    )
    for call in calls:
        with stopped_early(), pytest.raises(RewardFailed):
            call()
    with stopped_early(), pytest.raises(Interrupted):
        checked_rollout(lambda prompts, trainer: os.kill(os.getpid(), signal.SIGINT), [], "rollout.fn")([1], None)


def test_an_object_of_another_class_is_no_environment() -> None:
    class Other:
        def __new__(cls) -> Any:
            return object.__new__(Maze)

    wrapped = environment_class(Other, "environment", Limits(), Counts())
    with pytest.raises(RewardFailed) as caught:
        environment_factory(Other, {}, "environment", wrapped)()
    assert caught.value.where == "environment"
    assert "Maze" in str(caught.value.got)


def test_calls_that_reach_no_tool_are_counted() -> None:
    """Also where the answer to such a call did not fit, so that there is no message of a tool."""
    wrapped, counts = tool(add)
    wrapped(a=1, b=1)
    calls = [{"name": "calc", "arguments": {"a": 1, "b": 1}}, {"name": "clac", "arguments": {}}]
    calls.append({"name": "calc", "arguments": "a=1"})
    called = [{"role": "assistant", "tool_calls": [{"type": "function", "function": call}]} for call in calls]
    interactions = Interactions(counts, tools={"calc": wrapped}, names=frozenset({"calc"}))
    metrics = interactions.metrics([[*called, {"role": "assistant", "content": "2", "tool_calls": None}], "text"])
    assert metrics == {"calc": [1, 0, 0], "unknown": [2, 2, 0]}
    assert interactions.metrics([]) == {"calc": [0, 0, 0], "unknown": [0, 0, 0]}
    assert list(interactions.arguments()) == ["tools"]


def test_calls_without_a_result_are_warned_of() -> None:
    call: dict[str, Any] = {"role": "assistant", "tool_calls": [{"function": {"name": "calc", "arguments": {}}}]}
    told = {"role": "tool", "name": "calc", "content": str({"error": "by zero"})}
    right = [call, {**told, "content": "2"}, {"role": "assistant", "content": "2", "tool_calls": None}]
    assert failed_calls(["text", right]) == []
    (warning,) = failed_calls([right, [call, told, call]])  # the last one had no room
    assert warning.startswith("2 of 3 calls")
    assert "by zero" in warning
