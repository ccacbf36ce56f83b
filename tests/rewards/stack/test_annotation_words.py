"""Annotations in words, which annotations are checked, and the value a user may have meant (PEP 484, PEP 586)."""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from functools import wraps
from typing import Annotated, Any, Literal, Optional, Union

import pytest
from annotated_types import Ge, Gt, Le, Lt
from pydantic import Field

from rlhf_cli.rewards.stack.argument_values import (
    annotations_of,
    fitting,
    in_words,
    is_judged,
    is_scalar,
    literals,
    missing_arguments,
)


@pytest.mark.parametrize(
    ("annotation", "words", "judged", "scalar"),
    [
        (int, "a whole number", True, True),
        (float, "a number", True, True),
        (bool, "true or false", True, True),
        (str, "text", True, True),
        (None, "null", True, False),
        (Any, "a value", True, False),
        (object, "a value", True, False),
        (Decimal, "a value", False, False),
        (Callable[[int], int], "a value", False, False),
        (Literal["a"], "a", True, True),
        (Literal["a", "b"], "a or b", True, True),
        (Literal["a", True, 3], "a, true or 3", True, True),
        (float | None, "a number or null", True, True),
        (Optional[int], "a whole number or null", True, True),  # noqa: UP045
        (Union[int, str], "a whole number or text", True, True),  # noqa: UP007
        (int | list[int], "a whole number or a list of whole numbers", True, False),
        (int | Decimal, "a whole number or a value", False, False),
        (list, "a list", True, False),
        (list[Any], "a list", True, False),
        (list[float], "a list of numbers", True, False),
        (Sequence[str], "a list of text", True, False),
        (tuple[int, ...], "a list of whole numbers", True, False),
        (list[Decimal], "a list of a value", False, False),
        (list[list[int]], "a list of a list of whole numbers", True, False),
        (dict, "a mapping, {name: value}", True, False),
        (Mapping[str, int], "a mapping, {name: value}", True, False),
        (dict[str, Decimal], "a mapping, {name: value}", False, False),
        (Annotated[int, Gt(0)], "a whole number above 0", True, True),
        (Annotated[float, Ge(0), Le(1)], "a number of at least 0 and of at most 1", True, True),
        (Annotated[float, Lt(5)], "a number below 5", True, True),
        (Annotated[float, Field(gt=0, lt=2)], "a number above 0 and below 2", True, True),
        (Annotated[list[int], Field()], "a list of whole numbers", True, False),
        (Annotated[Decimal, Gt(0)], "a value above 0", False, False),
    ],
)
def test_what_an_annotation_says(annotation: object, words: str, judged: bool, scalar: bool) -> None:
    assert in_words(annotation) == words
    assert is_judged(annotation) == judged
    assert is_scalar(annotation) == scalar


@pytest.mark.parametrize(
    ("annotation", "choices"),
    [
        (Literal["a", "b", 3], ["a", "b"]),
        (Literal["a"] | None, ["a"]),
        (Annotated[Literal["a", "b"], Gt(0)], ["a", "b"]),
        (list[Literal["a"]], []),
        (str, []),
    ],
)
def test_the_choices_of_an_annotation(annotation: object, choices: list[str]) -> None:
    assert literals(annotation) == choices


@pytest.mark.parametrize(
    ("annotation", "value", "meant"),
    [
        (bool, "Yes", True),
        (bool, "off", False),
        (bool, "maybe", None),
        (int, "3", 3),
        (float, "0.5", 0.5),
        (int, "0.5", None),
        (int, 3.0, 3),
        (int, 3.5, None),
        (Annotated[int, Gt(5)], 3.0, None),
        (list[str], "a", ["a"]),
        (list[int], 3, [3]),
        (int, None, None),
        (float, "x", None),
    ],
)
def test_what_may_have_been_meant(annotation: object, value: object, meant: object) -> None:
    found = fitting(annotation, value)
    assert (type(found), found) == (type(meant), meant)


class Made:
    def __init__(self, size: int) -> None:
        raise NotImplementedError


def plain(a: int, *, b: list[str]) -> None:
    raise NotImplementedError


@wraps(plain)
def wrapped(*args: object, **named: object) -> None:
    raise NotImplementedError


def odd(a: NotThere, b: int, c: "list[") -> None:  # type: ignore  # noqa
    raise NotImplementedError


def test_annotations_that_can_be_read() -> None:
    assert annotations_of(plain) == {"a": int, "b": list[str], "return": type(None)}
    assert annotations_of(wrapped) == annotations_of(plain)
    assert annotations_of(Made)["size"] is int
    assert annotations_of(odd)["b"] is int
    assert not {"a", "c"} & set(annotations_of(odd))
    assert annotations_of(typing.cast(Any, len)) == {}


def takes(
    completions: list[str], answer: str, column, many: list[str], *, size: int, kept: int = 0, **rest: int
) -> None:  # type: ignore[no-untyped-def]
    raise NotImplementedError


def test_arguments_that_no_column_is_meant_for() -> None:
    assert missing_arguments(takes) == ["answer", "size"]
    assert missing_arguments(takes, only_by_keyword=True) == ["size"]
