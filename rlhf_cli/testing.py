"""Test your own reward in one line.

    from rlhf_cli.testing import check_reward

    def test_polite():
        values = check_reward("./rewards.py:polite", args={"word": "please"}, completions=["Yes, please.", "No."])
        assert values == [1.0, 0.0]

`check_reward` calls the reward several times, as a training run does, and fails with the problem and its row. No torch.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import math
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import NoReturn, TypeAlias

from rlhf_cli.errors import RewardError
from rlhf_cli.rewards.completion_text import Completion, text_of
from rlhf_cli.rewards.dense import Span
from rlhf_cli.rewards.stack.returned_scores import TokenValues, as_scores, as_token_values, named_spans, place_spans
from rlhf_cli.rewards.stack.reward_functions import required_columns, resolve
from rlhf_cli.rewards.stack.token_offsets import characters, token_ids

Value: TypeAlias = float | TokenValues | list[Span] | None
"""A row's reward: a number, None (does not apply), one entry per token, or (start, end, value) spans."""

_UNKNOWN_COLUMN = "an_unknown_column"
_ROWS_ALONE = 8
_WHY_INDEPENDENT = (
    ": a gate passes on only the rows that survive, so a row's value must not depend on the others "
    "(row_independent=False if that is intended)"
)


def check_reward(
    reward: str | Callable[..., object],
    *,
    completions: Sequence[Completion],
    prompts: Sequence[Completion] | None = None,
    completion_ids: Sequence[Sequence[int]] | None = None,
    args: Mapping[str, object] | None = None,
    conversational: bool = False,
    row_independent: bool = True,
    tolerance: float = 1e-6,
    **columns: Sequence[object],
) -> list[Value]:
    """Return the reward's values if it keeps the rules below, otherwise raise AssertionError.

    It must accept any column by **kwargs; return one value per row, finite or None; return the same value when called
    again, and for a row among others, in another order and alone (a gate passes on only the surviving rows); leave its
    inputs unchanged; and be picklable, unless it is given as text.

    Args:
        reward: `module:function`, `./file.py:function` as in a config, or the function itself. It may be async.
        completions: texts, or lists of messages. At least two rows are needed to check independence.
        prompts: of the same kind; default: empty ones.
        completion_ids: token ids of each completion, which dense rewards count; default: its UTF-8 bytes.
        args: as in the config.
        conversational: also call it with the texts as messages; the values must be those of the texts.
        row_independent: False for a reward that compares rows on purpose, such as a diversity bonus; it cannot be
            gated.
        tolerance: how much a row's value may change with the other rows; a batched model rounds.
        columns: the dataset's columns, one value per row.
    """
    __tracebackhide__ = True
    function = _function(reward, dict(args or {}))
    rows = _rows(completions, prompts, completion_ids, columns)
    _check_signature(function, columns)
    if not isinstance(reward, str):
        try:
            pickle.loads(pickle.dumps(reward))
        except Exception as error:  # the test must report any error of a user's object
            _fail(
                f"cannot be pickled, so it cannot run in a process of its own ({type(error).__name__}: {error}); "
                "define it at the top of a module, not inside a function"
            )
    with asyncio.Runner() as runner:
        call = functools.partial(_call, function, runner)
        everything = list(range(len(completions)))
        values = call(rows, everything)
        _same(values, call(rows, everything), everything, "when called again: it is not deterministic", 0.0)
        for some, company in _selections(len(completions)) if row_independent else ():
            _same(values, call(rows, some), some, company + _WHY_INDEPENDENT, tolerance)
        if conversational:
            texts = rows["completions"] + rows["prompts"]
            if not all(isinstance(text, str) for text in texts):
                raise ValueError("check_reward: with conversational=True the completions and prompts are texts")
            messages: dict[str, list[object]] = {
                "prompts": [_message("user", prompt) for prompt in rows["prompts"]],
                "completions": [_message("assistant", completion) for completion in rows["completions"]],
            }
            chats = call({**rows, **messages}, everything)
            _same(values, chats, everything, "when the completions are messages instead of texts", tolerance)
    return values


def _call(
    function: Callable[..., object], runner: asyncio.Runner, rows: dict[str, list[object]], some: list[int]
) -> list[Value]:
    """Return the values of some of the rows; messages use the row numbers of the full batch."""
    __tracebackhide__ = True
    given = {name: [column[row] for row in some] for name, column in rows.items()}
    lent = copy.deepcopy(given)
    extra_logs: list[tuple[str, int]] = []
    returned = function(
        **lent,
        **{_UNKNOWN_COLUMN: [0] * len(some)},
        trainer_state=SimpleNamespace(global_step=0, max_steps=1, epoch=0.0, num_train_epochs=1, log_history=[]),
        log_extra=lambda column, values: extra_logs.append((column, len(values))),
        log_metric=lambda name, value: float(value),
    )
    if inspect.isawaitable(returned):
        returned = runner.run(asyncio.wait_for(returned, None))
    for name, before in given.items():
        if len(before) != len(lent[name]):
            _fail(f"changes its inputs: {name} had {len(before)} rows and has {len(lent[name])} after the call")
        for number, old, new in zip(some, before, lent[name], strict=True):
            if not _equal(old, new):
                was, now = (f"{type(value).__name__} {value!r:.80}" for value in (old, new))
                _fail(f"changes its inputs: {name} of row {number} was {was}, is {now} after the call")
    for column, length in extra_logs:
        if length != len(some):
            _fail(f"log_extra({column!r}, ...) was given {length} values for {len(some)} completions")

    def read_dense(index: int, value: Sequence[object]) -> list[float | None] | list[Span]:
        """Return the values per token, or the spans. A test knows no token borders, only the text."""
        if (spans := named_spans(value)) is None:
            return as_token_values(value, len(token_ids(given, index)), list, "last")
        place_spans(spans, characters(text_of(given["completions"][index])), spread="last")
        return spans

    try:
        return list(as_scores("it", returned, len(some), read_dense))  # type: ignore[arg-type]
    except RewardError as error:
        row = f"row {some[error.row]}: " if error.row is not None else ""
        _fail(f"{row}returned {error.got}; expected {error.expected}")


def _same(wanted: list[Value], got: list[Value], some: list[int], circumstance: str, tolerance: float) -> None:
    __tracebackhide__ = True
    for row, value in zip(some, got, strict=True):
        if not _close(wanted[row], value, tolerance):
            _fail(f"row {row} scores {wanted[row]!r}, but {value!r} {circumstance}")


def _function(reward: str | Callable[..., object], args: dict[str, object]) -> Callable[..., object]:
    __tracebackhide__ = True
    if isinstance(reward, str):
        return resolve(reward, args, where="check_reward")
    if not args:
        return reward
    parameters = inspect.signature(reward).parameters.values()
    named = [one.name for one in parameters if one.kind is not inspect.Parameter.VAR_KEYWORD]
    for name in args:
        if name not in named:
            _fail(f"there is no argument {name!r}; it takes {', '.join(named)}")
    return functools.partial(reward, **args)


def _rows(
    completions: Sequence[Completion],
    prompts: Sequence[Completion] | None,
    completion_ids: Sequence[Sequence[int]] | None,
    columns: dict[str, Sequence[object]],
) -> dict[str, list[object]]:
    __tracebackhide__ = True
    if isinstance(completions, str) or not completions:
        raise ValueError("check_reward: `completions` is a list with at least one completion")
    if prompts is None:
        prompts = ["" if isinstance(completion, str) else _message("user", "") for completion in completions]
    if completion_ids is None:
        completion_ids = [list(text_of(completion).encode()) for completion in completions]
    rows = {"prompts": prompts, "completions": completions, "completion_ids": completion_ids, **columns}
    for name, column in rows.items():
        if isinstance(column, str) or not isinstance(column, Sequence) or len(column) != len(completions):
            raise ValueError(f"check_reward: `{name}` is a list of {len(completions)} values, one per completion")
    return {name: list(column) for name, column in rows.items()}


def _check_signature(function: Callable[..., object], columns: dict[str, Sequence[object]]) -> None:
    __tracebackhide__ = True
    parameters = inspect.signature(function).parameters
    if parameters and not any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values()):
        _fail(
            f"takes ({', '.join(parameters)}) and no **kwargs; a run passes every dataset column, trainer_state, "
            "log_extra and log_metric"
        )
    if missing := [name for name in required_columns(function) if name not in columns]:
        _fail(f"needs the column {missing[0]!r}: check_reward(..., {missing[0]}=[...]), or args where it is a setting")


def _selections(num_rows: int) -> Iterator[tuple[list[int], str]]:
    """Yield rows to score again, and how a message describes the selection."""
    rows = list(range(num_rows))
    if num_rows == 1:
        return
    yield rows[::-1], "when the rows come in reversed order"
    for some in ([row] for row in rows[:_ROWS_ALONE]):
        yield some, "when it is scored alone"
    for some in (rows[::2], rows[1::2]):
        if len(some) > 1:
            yield some, f"when only the rows {some[0]}, {some[1]}, ... are scored"


def _close(wanted: object, value: object, tolerance: float) -> bool:
    if isinstance(wanted, list | tuple) and isinstance(value, list | tuple):
        return len(wanted) == len(value) and all(map(_close, wanted, value, [tolerance] * len(value)))
    if isinstance(wanted, int | float) and isinstance(value, int | float):
        return math.isclose(wanted, value, rel_tol=tolerance, abs_tol=tolerance)
    return wanted is value is None


def _equal(before: object, after: object) -> bool:
    """Return whether two values and their types are deeply equal; also handles arrays, whose == returns an array."""
    if type(before) is not type(after):
        return False
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        return _equal([*before.items()], [*after.items()])
    if isinstance(before, list | tuple) and isinstance(after, list | tuple):
        return len(before) == len(after) and all(map(_equal, before, after))
    return before is after or pickle.dumps(before) == pickle.dumps(after)


def _message(role: str, content: object) -> list[dict[str, object]]:
    return [{"role": role, "content": content}]


def _fail(problem: str) -> NoReturn:
    __tracebackhide__ = True
    raise AssertionError(f"the reward {problem}" if not problem.startswith("row ") else f"the reward, {problem}")
