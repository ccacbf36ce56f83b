"""Check the `args` of a reward against its signature.

Rewards check rules that an annotation cannot express: a factory raises when it is called, and a function uses
`rewards/checked_arguments.refused_by`.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Literal, Union, get_args, get_origin

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from rlhf_cli.errors import RewardError
from rlhf_cli.tables.trl_values import NEVER_COLUMNS, REWARD_ARGUMENTS, TEXT_ARGUMENTS
from rlhf_cli.text.suggest import nearest

Place = Callable[[str], str]
_UNIONS = (Union, types.UnionType)
_BEGINNING = 3
"""Two words that share this many first letters count as long and short forms of each other."""


def argument_problems(
    fn: str, target: Callable[..., object], args: Mapping[str, object], *, is_factory: bool, args_key: str, place: Place
) -> Iterator[RewardError]:
    """Yield an error for each argument that is unknown, reserved for the trainer, of a wrong value, or missing.

    `args_key` is the key of `args`; `place` turns a key into the location where it was written. The **kwargs of a
    function receive the dataset's columns, so a misspelt argument would go unnoticed there.
    """
    parameters = inspect.signature(target).parameters
    named = {name: one for name, one in parameters.items() if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)}
    takes_any = is_factory and any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    annotations = _annotations_of(target)
    unknown = [name for name in args if name not in named and not takes_any]
    for name, value in args.items():
        key = f"{args_key}.{name}"
        if name in unknown:
            valid = [other for other in named if other not in REWARD_ARGUMENTS]
            close = nearest(name, valid)
            yield RewardError(
                f"{fn} has no argument {name!r}",
                where=place(key),
                got=f"{name}: {json.dumps(value, ensure_ascii=False, default=str)}",
                expected=", ".join(valid) or "no arguments",
                hint=f"{args_key}.{close}" if close else f"~{key}",
            )
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
    for name, parameter in named.items() if is_factory else ():
        # The error for a misspelt argument already suggests this name.
        if name not in args and parameter.default is parameter.empty and not nearest(name, unknown):
            yield RewardError(
                f"{fn} needs the argument {name!r}",
                where=place(args_key),
                got=", ".join(args) or "no arguments",
                expected=", ".join(named)
                + ("" if inspect.isclass(target) else "; a reward itself takes `completions`"),
                hint=f"{args_key}.{name}=VALUE",
            )


def required_parameters(parameters: Mapping[str, inspect.Parameter]) -> list[str]:
    """Return the names of the parameters that have no default."""
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [name for name, one in parameters.items() if one.default is one.empty and one.kind not in several]


def refuse_other_signature(
    fn: str, parameters: Mapping[str, inspect.Parameter], args: Mapping[str, object], *, where: str
) -> None:
    """Raise RewardError, with lines that make a reward of it, for a function that takes what no reward is given.

    verl's functions score one text a call (`solution_str`), OpenRLHF's take `queries`.
    """
    needs = [name for name in required_parameters(parameters) if name not in args]
    known = ("prompt", "completion") if "completions" in parameters else NEVER_COLUMNS
    if not (foreign := [name for name in needs if name in known]):
        return
    name, columns = fn.rpartition(":")[2], [NEVER_COLUMNS.get(one, one) for one in needs]
    if foreign[0].endswith("s") or not parameters.keys().isdisjoint(TEXT_ARGUMENTS):
        call = f"{name}({', '.join(map('{}={}'.format, needs, columns))})"
    else:
        rows = f"zip({', '.join(columns)})" if len(columns) > 1 else columns[0]
        call = f"[{name}({', '.join(f'{one}={one}' for one in needs)}) for {', '.join(needs)} in {rows}]"
    raise RewardError(
        f"{fn} takes {foreign[0]!r}, which no reward is given",
        where=where,
        got=f"{name}({', '.join(parameters)})",
        expected=f"{NEVER_COLUMNS[foreign[0]]}, a list of one entry a row; a function such as this one:",
        advice=f"def score({', '.join(dict.fromkeys(['completions', *columns]))}, **columns):\n    return {call}",
    )


def missing_arguments(reward: Callable[..., object], *, only_by_keyword: bool = False) -> list[str]:
    """Return a reward function's parameters without default whose annotation wants one value.

    The trainer would pass a column for these. With `only_by_keyword`, return only keyword-only parameters: the author
    of a positional `answer: str` may have meant that each answer is a text.
    """
    annotations = _annotations_of(getattr(reward, "func", reward))
    return [
        name
        for name, parameter in inspect.signature(reward).parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        and (parameter.kind is parameter.KEYWORD_ONLY or not only_by_keyword)
        and name not in REWARD_ARGUMENTS
        and _is_scalar(annotations.get(name, object))
    ]


def complaint(annotation: object, value: object) -> str | None:
    """Return a description of the expected value, or None if `value` fits or cannot be checked.

    Values are checked strictly as JSON: a list fits a tuple, a whole number fits a float, but "3" is not a number.
    """
    try:
        adapter: TypeAdapter[object] = TypeAdapter(annotation)  # type: ignore[arg-type]
        adapter.validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        if any(one["type"] == "callable_type" for one in error.errors(include_url=False)):
            return None  # no text of a configuration is a function
        messages = [one["msg"].removeprefix("Value error, ") for one in error.errors(include_url=False)]
        words = (message.removeprefix("Input should be ").replace("array", "list") for message in messages)
        return " or ".join(dict.fromkeys(words))
    except (PydanticUserError, TypeError, ValueError, NameError):
        return None  # pydantic cannot use the annotation, or JSON cannot express the value
    return None


def _annotations_of(target: Callable[..., object]) -> dict[str, object]:
    """Return the resolved annotation of each parameter; leave out annotations that cannot be resolved."""
    function = target.__init__ if inspect.isclass(target) else inspect.unwrap(target)
    found: dict[str, object] = {}
    for name, annotation in getattr(function, "__annotations__", {}).items():
        alone, names = types.SimpleNamespace(__annotations__={name: annotation}), getattr(function, "__globals__", {})
        with contextlib.suppress(NameError, AttributeError, TypeError, SyntaxError):
            found |= typing.get_type_hints(alone, globalns=names, include_extras=True)
    return found


def _is_scalar(annotation: object) -> bool:
    """Return whether the annotation wants a single value instead of a column."""
    if get_origin(annotation) is Annotated:
        return _is_scalar(get_args(annotation)[0])
    if get_origin(annotation) in _UNIONS:
        return all(_is_scalar(part) for part in get_args(annotation))
    return get_origin(annotation) is Literal or annotation in (int, float, bool, str, type(None))


def _hint(key: str, annotation: object, value: object) -> str | None:
    """Return what was probably meant: the nearest choice, 3 for "3", true for "yes", [a] for a; None if unknown."""
    choices = _choices(annotation)
    if isinstance(value, str) and choices:
        typed = value.lower()
        begun = [choice for choice in choices if choice[:_BEGINNING] == typed[:_BEGINNING]]  # chars, for characters
        close = nearest(typed, choices) or (begun[0] if len(begun) == 1 else None)
        return f"{key}={close}" if close else None
    adapter: TypeAdapter[object] = TypeAdapter(annotation)  # type: ignore[arg-type]
    for candidate in (value, [value]) if not isinstance(value, bool) else ():
        with contextlib.suppress(ValidationError):
            meant = adapter.validate_python(candidate)
            return f"{key}='[{value}]'" if isinstance(meant, list) else f"{key}={json.dumps(meant, default=str)}"
    return None


def _choices(annotation: object) -> list[str]:
    """Return the text options of an annotation; empty if it is not a choice."""
    if get_origin(annotation) is Literal:
        return [part for part in get_args(annotation) if isinstance(part, str)]
    if get_origin(annotation) in (*_UNIONS, Annotated):
        return [text for part in get_args(annotation) for text in _choices(part)]
    return []


def anchored(error: RewardError, *, args_key: str, place: Place) -> RewardError:
    """Return an error that a reward raised about `args.NAME` as an error about that configuration key."""
    where, hint = error.where or "args", error.hint
    if where == "args" or where.startswith("args."):
        error.where = place(args_key + where.removeprefix("args"))
        error.hint = hint.replace("args.", f"{args_key}.") if hint is not None and hint.startswith("args.") else hint
    return error
