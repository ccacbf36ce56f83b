"""Generate embedded worlds: small, fully known tasks of any size, with the same rows for the same seed.

The first n rows of a world do not depend on `num_rows`. Some have demonstrations, good and bad, to warm-start a tiny
model. The `where` of an error is relative to `args`, '' for the world itself, and so is a hint such as `task=gcd`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from inspect import signature
from typing import Any, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from rlhf_cli.errors import DataError, pydantic_words
from rlhf_cli.text.suggest import nearest

DEFAULT_NUM_ROWS = 1000
WORLDS = {
    "reasoning_gym": "reasoning_gym:generate",
    "split_sums": "toy_tasks:generate_split",
    "toy_demonstrations": "toy_tasks:demonstrations",
    "toy_judgements": "toy_tasks:generate_judgements",
    "toy_preferences": "toy_tasks:preferences",
    "toy_speakers": "toy_tasks:generate_speakers",
    "toy_sums": "toy_tasks:generate",
    "hh_pairs": "toy_tasks:generate_dialogues",
}
"""World -> the module and function of its rows, called with `(num_rows, seed, **args)`."""
DEMONSTRATIONS = {
    "toy_calls": "toy_tasks:call_demonstrations",
    "toy_speakers": "toy_tasks:speaker_demonstrations",
    "toy_sums": "toy_tasks:demonstrations",
}
"""The same of its demonstrations."""


def maker(named: str) -> Callable[..., Any]:
    """Return a function of a world; its module is imported only now."""
    module, _, function = named.partition(":")
    found: Callable[..., Any] = getattr(import_module(f"{__name__}.{module}"), function)
    return found


def generate(
    world: str, args: Mapping[str, object], *, seed: int, name: str = "data", limit: int | None = None
) -> list[dict[str, object]]:
    """Return the rows of a world, or the first `limit`. `args` may hold `num_rows` (1000) and `seed` (that of a call).

    name: config key for messages. Raise DataError for an unknown world, an unknown argument and an invalid value.
    """
    count = num_rows(world, args, name=name)
    count = count if limit is None else min(limit, count)
    rows = maker(WORLDS[world])
    try:
        return [dict(row) for row in rows(**{"seed": seed, **args, "num_rows": count})]
    except DataError as error:
        # The world knows its argument's name; we know the config key above it.
        error.where = f"{name}.args.{error.where}" if error.where else f"{name}.world"
        if error.hint is not None and re.split("[.=]", error.hint)[0] in signature(rows).parameters:
            error.hint = f"{name}.args.{error.hint}"
        raise


def demonstrations(world: str, num_rows: int, *, seed: int, name: str) -> list[dict[str, str]]:
    """Return rows of `prompt` and `completion`, good and bad, to warm-start a model. Raise DataError without any."""
    if world not in DEMONSTRATIONS:
        what, expected = f"the world {world!r} has no demonstrations", f"one of {', '.join(DEMONSTRATIONS)}"
        raise DataError(what, where=name, got=world, expected=expected, hint=nearest(world, DEMONSTRATIONS))
    rows: list[dict[str, str]] = maker(DEMONSTRATIONS[world])(num_rows, seed)
    return rows


def num_rows(world: str, args: Mapping[str, object], *, name: str = "data") -> int:
    """Return how many rows `generate` gives without a limit. Raise like `generate`, by the generator's signature."""
    if world not in WORLDS:
        what, expected = f"no world named {world!r}", f"one of {', '.join(WORLDS)}"
        raise DataError(what, where=f"{name}.world", got=world, expected=expected, hint=nearest(world, WORLDS))
    hints = get_type_hints(maker(WORLDS[world]))
    valid = [key for key in hints if key != "return"]
    for key, value in args.items():
        where = f"{name}.args.{key}"
        if key not in valid:
            what, expected, close = f"the world {world} has no argument {key!r}", ", ".join(valid), nearest(key, valid)
            hint = f"{name}.args.{close}" if close is not None else None
            raise DataError(what, where=where, got=key, expected=f"one of {expected}", hint=hint)
        try:
            TypeAdapter(hints[key], config=ConfigDict(strict=True)).validate_python(value)
        except ValidationError as error:
            expected = pydantic_words(error.errors()[0]["msg"])
            raise DataError(f"wrong type for {key}", where=where, got=repr(value), expected=expected) from None
    count = args.get("num_rows", DEFAULT_NUM_ROWS)
    assert isinstance(count, int)
    if count < 1:
        raise DataError("a world has at least one row", where=f"{name}.args.num_rows", got=count, expected="1 or more")
    return count


def with_columns(sets: Sequence[Sequence[str]]) -> list[str]:
    """Return the names of the worlds whose rows have all columns of one of these sets."""
    columns = {"reasoning_gym": {"task", "difficulty", "entry"}}  # those that no other world has
    columns |= {name: set(generate(name, {}, seed=0, limit=1)[0]) for name in WORLDS if name not in columns}
    return [name for name, has in columns.items() if any(set(needed) <= has for needed in sets)]
