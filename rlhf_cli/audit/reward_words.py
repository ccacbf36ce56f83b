"""Extract the words that a reward looks for from its code and arguments, because a policy finds them by trial."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable
from types import CodeType, FunctionType

_WORD = re.compile(r"[^\W\d_][\w' .,!?-]{1,30}")
"""Matches plain words and phrases, but not patterns, formats or keys with symbols."""
_MOST = 40


def reward_words(functions: Iterable[Callable[..., object]]) -> list[str]:
    """Return the plain texts in these reward functions, without docstrings and duplicates.

    Include constants in their code, in objects of their own module that they use (a list of words, another function),
    and in their arguments.
    """
    found: dict[str, None] = {}
    for function in functions:
        for text in _of_function(function, seen=set()):
            if _WORD.fullmatch(text):
                found.setdefault(text)
    return list(found)[:_MOST]


def _of_function(function: Callable[..., object], *, seen: set[int]) -> Iterable[str]:
    if isinstance(function, functools.partial):
        yield from _texts(list(function.keywords.values()))
        yield from _of_function(function.func, seen=seen)
    elif isinstance(function, FunctionType) and id(function) not in seen:
        seen.add(id(function))
        for code in _codes(function.__code__):
            yield from _texts([constant for constant in code.co_consts if constant != function.__doc__])
            for name in code.co_names:
                named = function.__globals__.get(name)
                if isinstance(named, FunctionType) and named.__module__ == function.__module__:
                    yield from _of_function(named, seen=seen)
                elif isinstance(named, str | list | tuple | set | frozenset | dict):
                    yield from _texts(named)


def _codes(code: CodeType) -> Iterable[CodeType]:
    """Yield the code of a function and of its nested code: comprehensions, inner functions."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _texts(value: object) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple | set | frozenset | dict):
        for one in value:
            yield from _texts(one)
