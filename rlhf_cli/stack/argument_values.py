"""Check a reward's `args` against its signature: names, types, choices and ranges, reporting all mistakes at once.

Rewards check themselves for what an annotation cannot express: a factory raises when it is called, and a function uses
`rewards/checked_arguments.refused_by`.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Mapping

from rlhf_cli.errors import RewardError
from rlhf_cli.stack.annotation_words import annotations_of, complaint, fitting, is_scalar, literals
from rlhf_cli.suggest import nearest
from rlhf_cli.tables.reward_arguments import REWARD_ARGUMENTS

Place = Callable[[str], str]
_BEGINNING = 3
"""Two words that share this many first letters count as long and short forms of each other."""


def argument_problems(
    fn: str,
    target: Callable[..., object],
    args: Mapping[str, object],
    *,
    is_factory: bool,
    args_key: str,
    place: Place,
) -> Iterator[RewardError]:
    """Yield an error for each argument that is unknown, reserved for the trainer, of a wrong value, or missing.

    `args_key` is the key of `args`; `place` turns a key into the location where it was written.
    """
    named, takes_any = _named(target, is_factory=is_factory)
    annotations = annotations_of(target)
    for name, value in args.items():
        key = f"{args_key}.{name}"
        if name not in named and not takes_any:
            yield _unknown(fn, name, value, named, args_key, place)
        elif not is_factory and name in REWARD_ARGUMENTS:
            yield RewardError(
                f"{name} is given to {fn} by the trainer, and no argument of a configuration's",
                where=place(key),
                got=value,
                hint=f"~{key}",
            )
        elif name in named and not (value is None and named[name].default is None):
            annotation = annotations.get(name, object)
            expected = complaint(annotation, value)
            if expected is not None:
                yield RewardError(
                    f"{fn} does not take this value for {name}",
                    where=place(key),
                    got=json.dumps(value, ensure_ascii=False),
                    expected=expected,
                    hint=_hint(key, annotation, value),
                )
    if is_factory:
        yield from _missing(fn, args, named, args_key, place)


def missing_arguments(reward: Callable[..., object], *, only_by_keyword: bool = False) -> list[str]:
    """Return a reward function's parameters without default whose annotation wants one value.

    The trainer would pass a column for these. With `only_by_keyword`, return only keyword-only parameters: the author
    of a positional `answer: str` may have meant that each answer is a text.
    """
    annotations = annotations_of(getattr(reward, "func", reward))
    return [
        name
        for name, parameter in inspect.signature(reward).parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        and name not in REWARD_ARGUMENTS
        and (parameter.kind is parameter.KEYWORD_ONLY or not only_by_keyword)
        and is_scalar(annotations.get(name, object))
    ]


def anchored(error: RewardError, *, args_key: str, place: Place) -> RewardError:
    """Return an error that a reward raised about `args.NAME` as an error about that configuration key."""
    where, hint = error.where or "args", error.hint
    if where == "args" or where.startswith("args."):
        error.where = place(args_key + where.removeprefix("args"))
        error.hint = hint.replace("args.", f"{args_key}.") if hint is not None and hint.startswith("args.") else hint
    return error


def _named(target: Callable[..., object], *, is_factory: bool) -> tuple[dict[str, inspect.Parameter], bool]:
    """Return the named parameters, and whether other names are accepted too.

    The **kwargs of a function receive the dataset's columns, so a misspelt argument would go unnoticed there.
    """
    parameters = inspect.signature(target).parameters.values()
    named = {
        parameter.name: parameter
        for parameter in parameters
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    }
    return named, is_factory and any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)


def _unknown(
    fn: str, name: str, value: object, named: Mapping[str, inspect.Parameter], args_key: str, place: Place
) -> RewardError:
    valid = [other for other in named if other not in REWARD_ARGUMENTS]
    close = nearest(name, valid)
    return RewardError(
        f"{fn} has no argument {name!r}",
        where=place(f"{args_key}.{name}"),
        got=f"{name}: {json.dumps(value, ensure_ascii=False, default=str)}",
        expected=", ".join(valid) or "no arguments",
        hint=f"{args_key}.{close}" if close else f"~{args_key}.{name}",
    )


def _missing(
    fn: str, args: Mapping[str, object], named: Mapping[str, inspect.Parameter], args_key: str, place: Place
) -> Iterator[RewardError]:
    unknown = [name for name in args if name not in named]
    for name, parameter in named.items():
        if name in args or parameter.default is not parameter.empty or nearest(name, unknown):
            continue  # the error for the misspelt argument already suggests this name
        yield RewardError(
            f"{fn} needs the argument {name!r}",
            where=place(args_key),
            got=", ".join(args) or "no arguments",
            expected=", ".join(named),
            hint=f"{args_key}.{name}=VALUE",
        )


def _hint(key: str, annotation: object, value: object) -> str | None:
    choices = literals(annotation)
    if isinstance(value, str) and choices:
        typed = value.lower()
        begun = [choice for choice in choices if choice[:_BEGINNING] == typed[:_BEGINNING]]  # chars, for characters
        close = nearest(typed, choices) or (begun[0] if len(begun) == 1 else None)
        return f"{key}={close}" if close else None
    meant = fitting(annotation, value)
    if isinstance(meant, list):
        return f"{key}='[{value}]'"
    return None if meant is None else f"{key}={json.dumps(meant)}"
