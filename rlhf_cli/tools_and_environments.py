"""Wrap what a user's tools, environments and rollout functions do for TRL. Does not import torch.

TRL calls environments and rollout functions experimental: all that touches them is here, and the tests in
test_contract_tools.py name each seam. In TRL a tool has no time limit, and its result is tokenised whatever its length.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import json
import math
import operator
import os
import sys
from asyncio import CancelledError
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from rlhf_cli.errors import RewardError, RewardFailed, RlhfError, described, in_a_line
from rlhf_cli.process import kept
from rlhf_cli.rewards.stack.calling import RewardLoop, answered, call_within, staying, with_own_arguments
from rlhf_cli.rewards.stack.component import RewardTimeout
from rlhf_cli.tables.trl_values import TAKEN_BY_REWARDS
from rlhf_cli.text.json_values import JsonTree
from rlhf_cli.truncation import ENDINGS, Ending

Function = Callable[..., Any]
KINDS = ("calls", "errors", "timeouts")
UNKNOWN = "unknown"
"""The name that counts calls without a tool: of a name that does not exist, or with arguments that have no names."""
NO_TOOLS = ("reset", "get_reward")
"""Public methods of an environment that the model cannot call, as in TRL."""
_TOLD, _LATE = "{'error':", "no answer"
_ERRORS = (Exception, CancelledError)
"""What a user's code may raise without ending the run; the errors that stop the run are not among them."""
_RUNNING, _SEEDS = "_rlhf_is_running", "_rlhf_seeds"


class ToolError(Exception):
    """What the model reads instead of a result; TRL catches it and writes `{'error': text}`."""


@dataclass(frozen=True)
class Limits:
    """The limits of one call: its time in seconds (None for none), the characters of its result, what an error does."""

    timeout_s: float | None = 10.0
    max_characters: int = 2000
    on_error: Literal["tell", "raise"] = "tell"


@dataclass
class Counts:
    """The calls of each tool since `drain`, and the first error that has to end the run.

    Async tools run on `loop`, one after another: TRL would wait for one that blocks its loop for good.
    """

    by_name: dict[str, list[int]] = field(default_factory=lambda: defaultdict(lambda: [0, 0, 0]))
    failure: RewardFailed | None = None
    loop: RewardLoop = field(default_factory=RewardLoop)

    def drain(self) -> dict[str, list[int]]:
        """Return name -> calls, errors, timeouts, and begin at 0. Raise the error that has to end the run."""
        if (failure := self.failure) is not None:
            self.failure = None
            raise failure
        found = {name: list(counts) for name, counts in self.by_name.items()}
        self.by_name.clear()
        return found


def tells_of_error(message: Mapping[str, object]) -> bool:
    """Return whether a message is a tool's that tells the model of an error."""
    return message.get("role") == "tool" and str(message.get("content")).startswith(_TOLD)


def failed_calls(completions: Sequence[object]) -> list[str]:
    """Return a warning if calls of the model failed; none otherwise."""
    messages = [message for completion in completions if isinstance(completion, list) for message in completion]
    calls = sum(len(message.get("tool_calls") or ()) for message in messages)
    errors = [str(message["content"]) for message in messages if tells_of_error(message)]
    answered = sum(message.get("role") == "tool" for message in messages) - len(errors)
    why = f", the first by {errors[0]:.200}" if errors else ""
    return [f"{calls - answered} of {calls} calls of the model got no result{why}"] * (answered < calls)


def as_text(result: object, max_characters: int) -> object:
    """Return a tool's result as text, cut, or as TRL's images and texts. Raise ToolError for an object without text."""
    parts = [part for part in result if isinstance(part, dict)] if isinstance(result, list) else []
    kinds = [part.get("type") for part in parts]
    if kinds and len(parts) == len(cast(list[object], result)) and all(kind in ("text", "image") for kind in kinds):
        if "image" in kinds:
            return parts
        result = "".join(str(part.get("text")) for part in parts)
    if isinstance(result, dict | list | tuple):
        result = json.dumps(result, ensure_ascii=False, default=_own_text)
    text = _own_text(result)[: max_characters + 1].encode(errors="replace").decode()  # half a character is no UTF-8
    return text if len(text) <= max_characters else text[: max_characters - 3] + "..."


def _own_text(value: object) -> str:
    """Return an object as text. Raise ToolError if it has none of its own, only its place in memory."""
    text = str(sorted(value, key=str) if isinstance(value, set | frozenset) else value)  # the same in all processes
    if f"{id(value):x}" in text and " at 0x" in text:
        raise ToolError(f"the result is an object of the class {type(value).__name__}, which is no text")
    return text


def limited(function: Function, name: str, where: str, limits: Limits, counts: Counts) -> Function:
    """Return the function as TRL and its chat template see it, with limits; `where` is its key for messages.

    An error of the function reaches the model as text, or ends the run at `Counts.drain`. Its random streams depend on
    its arguments alone, and its process state is put back (process).
    """
    signature = inspect.signature(function)

    def failed(error: BaseException) -> ToolError:
        counts.by_name[name][1] += 1
        counts.by_name[name][2] += isinstance(error, RewardTimeout)
        if limits.on_error == "raise" and counts.failure is None:
            failure = RewardFailed(f"the tool {name!r} failed", where=where, got=described(error))
            failure.hint = f"{where}.on_error=tell  # the model reads the error, and the run goes on"
            failure.__cause__ = error
            counts.failure = failure
        is_plain = isinstance(error, RewardTimeout | ToolError)
        text = str(error) if is_plain else in_a_line(error)
        return ToolError(text.encode(errors="replace").decode()[: limits.max_characters])

    @functools.wraps(function)
    def call(*given: object, **named: object) -> object:
        counts.by_name[name][0] += 1
        try:
            signature.bind(*given, **named)
        except TypeError as error:
            raise failed(ToolError(f"wrong arguments: {error}")) from None
        try:
            with staying(), kept((name, named, *_seeds(given))), _running(given):
                own = with_own_arguments(named)
                result = answered(lambda: function(*given, **own), limits.timeout_s, counts.loop.run)
                return call_within(lambda: as_text(result, limits.max_characters), limits.timeout_s)
        except _ERRORS as error:
            raise failed(error) from None

    call.__name__ = name
    return call


@contextmanager
def _running(given: Sequence[object]) -> Iterator[None]:
    """Mark an environment (the first argument) while its code runs: what it calls of itself then has no limits."""
    holder: dict[str, object] = given[0].__dict__ if given and hasattr(type(given[0]), _RUNNING) else {}
    before, holder[_RUNNING] = holder.get(_RUNNING, False), True
    try:
        yield
    finally:
        holder[_RUNNING] = before


def _seeds(given: Sequence[object]) -> list[object]:
    """Return what tells this call of an environment from others: the row of its rollout, and the number of the call."""
    state = getattr(given[0], _SEEDS, None) if given else None
    if state is None:
        return []
    state[1] += 1
    return list(state)


def _hidden(function: Function, instance: object) -> Function:
    def call(*given: object, **named: object) -> object:
        with _running([instance]):
            return function(instance, *given, **named)

    return call


def _from_outside(original: Function, wrapped: Function) -> Function:
    """Return the wrapped method for TRL, and the original one for calls by the environment itself."""

    @functools.wraps(original)
    def choose(self: object, *given: object, **named: object) -> object:
        is_own = self.__dict__.get(_RUNNING, False)
        return (original if is_own else wrapped)(self, *given, **named)

    return choose


def tools_of(environment: type) -> dict[str, Function]:
    """Return the methods of an environment's class that the model can call, as TRL lists them."""
    found = inspect.getmembers(environment, predicate=inspect.isfunction)
    return {name: method for name, method in found if name not in NO_TOOLS and not name.startswith("_")}


def schemas_of(tools: Mapping[str, Function]) -> list[JsonTree]:
    """Return what the chat template is told of tools; a name is that of the configuration, not of the function."""
    if not tools:
        return []
    from transformers.utils.chat_template_utils import get_json_schema

    found = {name: get_json_schema(tool) for name, tool in tools.items()}
    return [{**schema, "function": {**schema["function"], "name": name}} for name, schema in found.items()]


def environment_class(
    original: type, where: str, limits: Limits, counts: Counts, *, scored_by: frozenset[str] = frozenset()
) -> type:
    """Return a subclass whose methods have limits; `scored_by` are the methods that rewards call, which are no tools.

    TRL gets no `get_reward`: it would add a column that no weight or gate knows. An error in `reset` ends the run.
    """

    def reset(self: object, **row: object) -> object:
        seeds = self.__dict__[_SEEDS] = [sorted(row.items(), key=str), 0]
        try:
            with staying(), kept(seeds), _running([self]):
                method, own = cast(Any, original).reset, with_own_arguments(row)
                seen = answered(lambda: method(self, **own), limits.timeout_s, counts.loop.run)
                if seen is None:
                    return None
                return call_within(lambda: as_text(seen, limits.max_characters), limits.timeout_s)
        except _ERRORS as error:
            got = str(error) if isinstance(error, ToolError) else described(error)
            what, expected = f"{original.__name__}.reset failed", "a text, or None"
            raise RewardFailed(what, where=where, got=f"{got}, for {row!r:.200}", expected=expected) from error

    methods: dict[str, object] = {_RUNNING: False, "__doc__": original.__doc__, "__module__": original.__module__}
    for name, method in inspect.getmembers(original, predicate=inspect.isfunction):
        if name in scored_by or name == "get_reward":
            methods[name] = property(functools.partial(_hidden, method))  # TRL lists functions; it takes no limits
        elif name == "reset":
            methods[name] = functools.wraps(method)(reset)
        elif not name.startswith("_"):
            tool = limited(method, name, where, limits, counts)
            is_static = isinstance(inspect.getattr_static(original, name), staticmethod)
            methods[name] = staticmethod(tool) if is_static else _from_outside(method, tool)
    return type(original.__name__, (original,), methods)


def environment_factory(original: type, args: Mapping[str, object], where: str, wrapped: type) -> Callable[[], object]:
    """Return a function without arguments that makes an instance of the `wrapped` class.

    TRL calls it in a process's first round, in a resumed run after the random states were loaded. So the random numbers
    of a constructor depend on its arguments, the rank and the number of the instance alone.
    """
    numbers = itertools.count()

    def make() -> object:
        seeds = (where, sorted(args.items()), os.environ.get("RANK"), next(numbers))
        try:
            with staying(), kept(seeds):
                made = wrapped(**args)
            if not isinstance(made, wrapped):
                raise TypeError(f"its __new__ returned an object of the class {type(made).__name__}")
            return made
        except _ERRORS as error:
            what = f"{original.__name__} cannot be constructed"
            raise RewardFailed(what, where=where, got=described(error), expected=f"{original}(**args)") from error

    return make


class EnvironmentScore:
    """A reward that asks each row's environment by a method; a row without such a method has no score."""

    def __init__(self, method: str, where: str) -> None:
        self.method, self.where = method, where
        self.__name__ = method

    def __call__(self, completions: Sequence[object], environments: Sequence[object] = (), **_: object) -> object:
        """Return one score per row. Raise RewardError for completions that no environment has seen."""
        if len(environments) != len(completions):
            what = "only a rollout has an environment, and these completions come from elsewhere"
            got = f"{len(completions)} completions, {len(environments)} environments"
            raise RewardError(what, where=self.where, got=got, hint=f"'~{self.where.removesuffix('.environment')}'")
        scores = [getattr(environment, self.method, lambda: None)() for environment in environments]
        return _awaited(scores) if any(map(inspect.isawaitable, scores)) else scores


async def _awaited(scores: Sequence[object]) -> list[object]:
    return [await score if inspect.isawaitable(score) else score for score in scores]


_RETURNED = ("prompt_ids", "completion_ids", "logprobs")
_MASK = "env_mask"


def checked_rollout(function: Function, columns: Sequence[str], where: str) -> Function:
    """Return the function with checks: it raises RewardFailed for an exception, RewardError for an invalid result."""

    @functools.wraps(function)
    def rollout(prompts: list[object], trainer: object) -> dict[str, object]:
        try:
            with staying():
                output = function(prompts, trainer)
        except RlhfError:
            raise
        except _ERRORS as error:
            raise RewardFailed("the rollout function failed", where=where, got=described(error)) from error
        model = getattr(trainer, "model", None)
        config = getattr(getattr(model, "module", model), "config", None)  # as DDP wraps it
        problem = _problem_of(output, len(prompts), columns, config.get_text_config() if config is not None else None)
        if problem is not None:
            what, got, expected = problem
            raise RewardError(f"the rollout function {what}", where=where, got=got, expected=expected)
        return dict(cast(Mapping[str, object], output))

    return rollout


def _problem_of(output: object, num_rows: int, columns: Sequence[str], model: object) -> tuple[str, str, str] | None:
    """Return what is wrong with a rollout: what, what was given, what is expected; None if it is sound."""
    if not isinstance(output, Mapping):
        return "returned no dict", type(output).__name__, f"a dict with {', '.join((*_RETURNED, *columns))}"
    if missing := [name for name in (*_RETURNED, *columns) if name not in output]:
        return f"returned no {missing[0]!r}", ", ".join(map(str, output)), ", ".join((*_RETURNED, *columns))
    window = getattr(model, "max_position_embeddings", None) or sys.maxsize
    for name, rows in output.items():
        is_by_token = name in (*_RETURNED, _MASK)
        if name in TAKEN_BY_REWARDS and not is_by_token:
            return f"returned {name!r}, which rewards get from the trainer", str(name), "another name for the column"
        is_one_for_all = not (is_by_token or name in columns or isinstance(rows, list))
        if is_one_for_all or (rows is None and name in ("logprobs", _MASK)):
            continue
        if not isinstance(rows, list) or (is_by_token and not all(isinstance(row, list) for row in rows)):
            return f"returned no lists in {name!r}", type(rows).__name__, "a list of lists of numbers, one per prompt"
        if len(rows) != num_rows:
            return f"returned a wrong number of rows in {name!r}", str(len(rows)), f"{num_rows}, one for each prompt"
        for row, values in enumerate(rows if is_by_token else ()):
            if problem := _problem_of_row(name, values, model):
                return f"returned {problem[0]} in {name!r}", f"{problem[1]:.80} in row {row}", problem[2]
    for row, (prompt, ids) in enumerate(zip(output["prompt_ids"], output["completion_ids"], strict=True)):
        for name in ("logprobs", _MASK):
            if (by_row := output.get(name)) is not None and len(by_row[row]) != len(ids):
                got = f"{len(by_row[row])} in {name}[{row}], and {len(ids)} completion_ids"
                return f"returned a wrong number of values in {name!r}", got, "one for each token of the completion"
        if len(prompt) + len(ids) > window:
            got = f"{len(prompt)} tokens of the prompt and {len(ids)} of the completion in row {row}"
            return "returned more tokens than the model reads", got, f"at most {window} for this model"
    return None


def _problem_of_row(name: str, values: Sequence[Any], model: object) -> tuple[str, str, str] | None:
    """Return what is wrong with the values of a row's tokens, as `_problem_of` does."""
    size = getattr(model, "vocab_size", sys.maxsize)  # a GPU would stop for good at an id beyond it
    expected, is_sound = {
        "logprobs": ("finite numbers", math.isfinite),
        _MASK: ("0 or 1", lambda value: value in (0, 1)),
    }.get(name, (f"token ids from 0 to {size - 1}", lambda value: 0 <= operator.index(value) < size))
    if not values and name in ("prompt_ids", "completion_ids"):
        return "a row without tokens", "[]", "at least one token id"
    try:
        wrong = [value for value in values if not is_sound(value)]
    except (TypeError, ValueError):
        wrong = [*values]
    return ("a wrong value", repr(wrong), expected) if wrong else None


@dataclass
class Interactions:
    """What TRL's constructor gets: tools, one factory of environments or several by name, a rollout function."""

    counts: Counts
    tools: Mapping[str, Function] = field(default_factory=dict)
    environments: Mapping[str | None, Callable[[], object]] = field(default_factory=dict)
    names: frozenset[str] = frozenset()
    rollout: Function | None = None

    def arguments(self) -> dict[str, object]:
        """Return TRL's arguments, without those that are not set."""
        only = self.environments.get(None)
        given = {
            "tools": list(self.tools.values()),
            "environment_factory": only if only is not None else dict(self.environments),
            "rollout_func": self.rollout,
        }
        return {name: value for name, value in given.items() if value}

    def metrics(self, completions: Sequence[object]) -> dict[str, list[int]]:
        """Return tool -> its calls, errors and timeouts since the last time; `completions` are those of the round."""
        counted = self.counts.drain()
        found = {name: counted.get(name, [0, 0, 0]) for name in sorted(self.names)}
        messages = [message for completion in completions if isinstance(completion, list) for message in completion]
        called = [call.get("function", call) for message in messages for call in message.get("tool_calls") or ()]
        known = [one for one in called if one.get("name") in self.names and isinstance(one.get("arguments"), Mapping)]
        unknown = len(called) - len(known)
        return found | ({UNKNOWN: [unknown, unknown, 0]} if self.names else {})


def ending_of(completion: object, *, is_cut: bool, max_calls: int | None, flag: object = None) -> Ending:
    """Return how a rollout ended; where several apply, the first of: flag, length, turns, timeout, tool_error.

    A tool's result at the end left no room for the answer: `length`. Calls at the end were not made: after `max_calls`
    rounds of calls because no more are allowed (`turns`), before because their results did not fit (`length`).

    is_cut: the token ids reach the limit without an end. max_calls: None if the trainer makes no calls. flag: what the
    dataset, rollout function or environment says: the name of an ending, else True for `length`.
    """
    if isinstance(flag, str) and flag:
        if flag not in ENDINGS:
            expected = "true or false, or one of " + ", ".join(ENDINGS)
            raise RewardError("no ending has this name", where="is_truncated", got=flag, expected=expected)
        return Ending(flag)
    if flag or is_cut:
        return Ending.LENGTH
    if max_calls is None or isinstance(completion, str) or not isinstance(completion, Sequence):
        return Ending.FINISHED
    messages = [message for message in completion if isinstance(message, Mapping)]
    calling = [place for place, message in enumerate(messages) if message.get("tool_calls")]
    if not calling:
        return Ending.FINISHED
    if messages[-1].get("role") == "tool":
        return Ending.LENGTH
    if calling[-1] == len(messages) - 1:
        return Ending.TURNS if len(calling) > max_calls else Ending.LENGTH
    errors = [str(message.get("content")) for message in messages[calling[-1] + 1 :] if tells_of_error(message)]
    if any(_LATE in text[: len(_TOLD) + len(_LATE) + 4] for text in errors):
        return Ending.TIMEOUT
    return Ending.TOOL_ERROR if errors else Ending.FINISHED
