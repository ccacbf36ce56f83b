"""Generate embedded worlds: small, fully known tasks of any size, with the same rows for the same seed.

A world is a module with `generate(num_rows, seed, **args)`; the first n rows do not depend on `num_rows`. A world for
warm-starting a tiny model also has `demonstrations(num_rows, seed, **args)`: good and bad texts.

An error of a world has a `where` relative to `args`, '' for the world itself, and so is a hint such as `task=gcd`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from rlhf_cli.data.worlds import hh_pairs, reasoning_gym, toy_preferences, toy_tasks
from rlhf_cli.data.worlds import toy_tasks as split_sums
from rlhf_cli.errors import DataError
from rlhf_cli.text.suggest import nearest

DEFAULT_NUM_ROWS = 1000


@dataclass(frozen=True)
class World:
    """The generators of a world. Each takes `(num_rows, seed, **args)` and returns that many rows.

    `demonstrations` is None for a world without them. `columns` are those that a world is known by if its rows are not
    made just to look at them.
    """

    generate: Callable[..., Sequence[Mapping[str, object]]]
    demonstrations: Callable[..., list[dict[str, str]]] | None = None
    columns: tuple[str, ...] = ()


WORLDS = {
    "reasoning_gym": World(reasoning_gym.generate, columns=reasoning_gym.OWN_COLUMNS),
    "split_sums": World(split_sums.generate_split),
    "toy_demonstrations": World(toy_tasks.demonstrations),
    "toy_judgements": World(toy_preferences.generate_judgements),
    "toy_preferences": World(toy_preferences.generate),
    "toy_speakers": World(toy_tasks.generate_speakers, toy_tasks.speaker_demonstrations),
    "toy_sums": World(toy_tasks.generate, toy_tasks.demonstrations),
    "hh_pairs": World(hh_pairs.generate),
}


def generate(
    world: str, args: Mapping[str, object], *, seed: int, name: str = "data", limit: int | None = None
) -> list[dict[str, object]]:
    """Return the rows of a world; `args` may contain `num_rows` (1000) and `seed` (that of the call).

    limit: the maximum number of first rows; None for no limit. name: config key for messages. Raise DataError for an
    unknown world, an unknown argument and an invalid value.
    """
    count = num_rows(world, args, name=name)
    count = count if limit is None else min(limit, count)
    try:
        return [dict(row) for row in WORLDS[world].generate(**{"seed": seed, **args, "num_rows": count})]
    except DataError as error:
        # The world knows its argument's name; we know the config key above it.
        error.where = f"{name}.args.{error.where}" if error.where else f"{name}.world"
        if error.hint is not None and error.hint.partition("=")[0] in signature(WORLDS[world].generate).parameters:
            error.hint = f"{name}.args.{error.hint}"
        raise


def demonstrations(world: str, num_rows: int, *, seed: int, name: str) -> list[dict[str, str]]:
    """Return rows of `prompt` and `completion`, good and bad, to warm-start a model for a world.

    name: config key for messages. Raise DataError for an unknown world and for one without demonstrations.
    """
    able = {other: made.demonstrations for other, made in WORLDS.items() if made.demonstrations is not None}
    if world not in able:
        raise DataError(
            f"there are no demonstrations of a world {world!r}",
            where=name,
            got=world,
            expected=f"one of {', '.join(able)}",
            hint=nearest(world, able),
        )
    return able[world](num_rows, seed)


def num_rows(world: str, args: Mapping[str, object], *, name: str = "data") -> int:
    """Return how many rows `generate` gives without a limit. Raise like `generate`."""
    _check_arguments(world, args, name)
    count = args.get("num_rows", DEFAULT_NUM_ROWS)
    assert isinstance(count, int)  # by the generator's signature
    if count < 1:
        raise DataError("a world without rows", where=f"{name}.args.num_rows", got=count, expected="1 or more")
    return count


def with_columns(sets: Sequence[Sequence[str]]) -> list[str]:
    """Return the names of the worlds whose rows have all columns of one of these sets."""
    columns = {name: set(world.columns or generate(name, {}, seed=0, limit=1)[0]) for name, world in WORLDS.items()}
    return [name for name, has in columns.items() if any(set(needed) <= has for needed in sets)]


def _check_arguments(world: str, args: Mapping[str, object], name: str) -> None:
    """Check names and types against the generator's signature."""
    if world not in WORLDS:
        raise DataError(
            f"no world named {world!r}",
            where=f"{name}.world",
            got=world,
            expected=f"one of {', '.join(WORLDS)}",
            hint=nearest(world, WORLDS),
        )
    hints = get_type_hints(WORLDS[world].generate)
    valid = list(signature(WORLDS[world].generate).parameters)
    for key, value in args.items():
        where = f"{name}.args.{key}"
        if key not in valid:
            close = nearest(key, valid)
            raise DataError(
                f"the world {world} has no argument {key!r}",
                where=where,
                got=key,
                expected=f"one of {', '.join(valid)}",
                hint=f"{name}.args.{close}" if close is not None else None,
            )
        kinds = _kinds(hints[key])
        if (isinstance(value, bool) and bool not in kinds) or not isinstance(value, kinds):
            expected = " or ".join(kind.__name__ for kind in kinds if kind is not NoneType)
            raise DataError(f"wrong type for {key}", where=where, got=repr(value), expected=expected)


def _kinds(hint: object) -> tuple[type, ...]:
    alternatives: Sequence[Any] = get_args(hint) if isinstance(hint, UnionType) else [hint]
    return tuple(get_origin(one) or one for one in alternatives)
