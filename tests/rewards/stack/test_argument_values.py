"""What a configuration gives a reward is held against the reward's own signature, all mistakes at once.

What is expected of a value is what Python's own reading of the annotation says (PEP 484, PEP 586), and what the pure
functions of the rewards raise when they are called; nothing here repeats the code under test.
"""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Annotated, Any

import pytest

from rlhf_cli.errors import Problems, RewardError, UserError
from rlhf_cli.rewards.stack.reward_functions import anchored, missing_arguments, resolve

MADE_UP_HINTS = True

KEY = "rewards.mine.args"
OURS = "rlhf_cli.rewards."
OWN = """
from __future__ import annotations

from typing import Annotated, Callable, Literal, Optional

import decimal
from pydantic import AfterValidator, Field
from rlhf_cli.rewards.completion_text import refused_by

def even(value: int) -> int:
    if value % 2:
        raise ValueError("an even number")
    return value


def no_inverse(low: float, high: float) -> None:
    if low >= high:
        raise ValueError("low is to be below high")


@refused_by(no_inverse)
def between(completions, *, low: float = 0.0, high: float = 1.0, **columns): return [0.0] * len(completions)


def typed(
    completions, words: list[str] = (), mode: Literal["soft", "hard"] = "soft", count: Annotated[int, Field(ge=1)] = 1,
    pairs: Annotated[int, AfterValidator(even)] = 2, scale: Optional[float] = None, word: str = None,
    call: Callable[[int], int] = None, exact: decimal.Decimal = 0, later: "NotThere" = 0, flag: bool = False, **columns,
): return [0.0] * len(completions)


class Made:
    def __init__(self, size: int): self.size = 3 // size

    def __call__(self, completions, **columns): return [0.0] * len(completions)
"""


@pytest.fixture(autouse=True)
def own(place: Path) -> None:
    (place / "own.py").write_text(OWN)


def problems(fn: str, **args: object) -> list[UserError]:
    """Everything that is wrong with the arguments of a reward; nothing in a list where they are accepted."""
    try:
        resolve(fn, args, where="rewards.mine.fn", args_key=KEY, place=lambda key: f"{key} (exp.yaml:3)")
    except Problems as found:
        return found.problems
    except RewardError as found:
        return [found]
    return []


def only(fn: str, **args: object) -> UserError:
    (error,) = problems(fn, **args)
    return error


@pytest.mark.parametrize(
    ("fn", "args", "name", "expected", "hint"),
    [
        (f"{OURS}length:length_ramp", {"full": 1, "zero": 2, "unit": "charactrs"}, "unit", "characters", "characters"),
        (f"{OURS}length:length_ramp", {"full": 1, "zero": 2, "unit": "WORDS"}, "unit", "words", "words"),
        (f"{OURS}length:length_target", {"target": 9, "width": 0}, "width", "above 0", None),
        (f"{OURS}length:length_target", {"target": "9", "width": 1}, "target", "a number", "9.0"),
        (f"{OURS}length:length_ramp", {"full": 5, "zero": 5}, "zero", "zero above full", None),
        (f"{OURS}match:regex", {"pattern": "(a"}, "pattern", "", None),
        (f"{OURS}tags:format_tags", {"tags": "think"}, "tags", "a list", "'[think]'"),
        (f"{OURS}tags:format_tags", {"tags": ["a", "a"]}, "tags", "one name or more", None),
        (f"{OURS}language:language_consistency", {"language": "latn"}, "language", "latin", "latin"),
        (f"{OURS}numeric:numeric_answer", {"tolerance": -0.1}, "tolerance", "at least 0", None),
        (f"{OURS}repetition:repetition", {"ngram_size": 0}, "ngram_size", "at least 1", None),
        (f"{OURS}code:code_runs", {"memory_mb": 3}, "memory_mb", "at least 64", None),
        (f"{OURS}judge:Judge", {"url": "http://a/v1", "model": "m", "rubric": "?"}, "rubric", "{completion}", None),
        ("./own.py:typed", {"count": 0}, "count", "at least 1", None),
        ("./own.py:typed", {"pairs": 3}, "pairs", "an even number", None),
        ("./own.py:typed", {"flag": 1}, "flag", "true or false", "true"),
        ("./own.py:typed", {"flag": None}, "flag", "true or false", None),
        ("./own.py:typed", {"word": 3}, "word", "a text", None),
    ],
)
def test_a_value_is_refused(fn: str, args: dict[str, object], name: str, expected: str, hint: str | None) -> None:
    error = only(fn, **args)
    assert error.where == f"{KEY}.{name} (exp.yaml:3)"
    assert error.got is not None
    assert expected in str(error.expected)
    assert hint is None or error.hint == f"{KEY}.{name}={hint}"


@pytest.mark.parametrize(
    ("fn", "args"),
    [
        (f"{OURS}code:code_runs", {"memory_mb": 64, "max_workers": None}),
        ("./own.py:typed", {"words": ["a"], "mode": "hard", "count": 1, "pairs": 4, "scale": 2}),
        ("./own.py:typed", {"word": None, "scale": None}),  # its default says that null is meant
        ("./own.py:typed", {"call": "operator.neg", "exact": "0.1", "later": []}),  # unknown
        ("./own.py:between", {"low": 0.5}),
        ("./own.py:Made", {"size": 2}),
    ],
)
def test_negative_control_what_it_takes_is_let_through(fn: str, args: dict[str, object]) -> None:
    assert problems(fn, **args) == []


TAKEN = "words, mode, count, pairs, scale, word, call, exact, later, flag"


@pytest.mark.parametrize(
    ("args", "got", "expected", "hint"),
    [
        ({"completions": ["a"]}, ["a"], None, f"'~{KEY}.completions'"),  # the trainer passes them
        ({"cuont": 3}, "cuont: 3", TAKEN, f"{KEY}.count"),
        ({"zzz": "é"}, 'zzz: "é"', TAKEN, f"'~{KEY}.zzz'"),
        ({"zzz": date(2025, 1, 1)}, 'zzz: "2025-01-01"', TAKEN, f"'~{KEY}.zzz'"),
    ],
)
def test_an_argument_not_to_be_given(args: dict[str, Any], got: object, expected: str | None, hint: str) -> None:
    error = only("./own.py:typed", **args)
    assert (error.got, error.expected, error.hint) == (got, expected, hint)
    assert error.where == f"{KEY}.{next(iter(args))} (exp.yaml:3)"


def test_what_a_factory_lacks_is_named_unless_it_is_misspelt() -> None:
    """`siez` is `size`. An unknown name that resembles no argument gives both errors."""
    error = only("./own.py:Made")
    assert (error.where, error.hint) == (f"{KEY} (exp.yaml:3)", f"{KEY}.size=VALUE")
    assert (error.got, error.expected) == ("no arguments", "size")
    assert only("./own.py:Made", siez=3).hint == f"{KEY}.size"
    unlike, missing = problems("./own.py:Made", colour=3)
    assert (unlike.hint, missing.got, missing.hint) == (f"'~{KEY}.colour'", "colour", f"{KEY}.size=VALUE")


def test_what_a_factory_or_a_check_raises_is_shown_with_its_line() -> None:
    error = only("./own.py:Made", size=0)
    assert "ZeroDivisionError" in str(error.got)
    line = next(number for number, text in enumerate(OWN.splitlines(), 1) if "3 // size" in text)
    assert f"(own.py:{line})" in str(error.got)
    assert "low is to be below high" in str(only("./own.py:between", low=2).got)
    assert only("./own.py:typed", mode="ch").hint is None  # no choice is near


@pytest.mark.parametrize(
    ("where", "hint", "at", "told"),
    [
        (None, None, "k (here)", None),
        ("args", "args.a=1", "k (here)", "k.a=1"),
        ("args.a", "or args.b", "k.a (here)", "or args.b"),
        ("argsother", "args.a=1", "argsother", "args.a=1"),
    ],
)
def test_an_error_names_the_key(where: str | None, hint: str | None, at: str, told: str | None) -> None:
    error = anchored(RewardError("odd", where=where, hint=hint), args_key="k", place=lambda key: f"{key} (here)")
    assert (error.where, error.hint) == (at, told)


def takes(completions: list[str], answer: str, column, many: list[str], *, size: Annotated[int, ""], kept: int = 0): ...


def test_arguments_that_no_column_is_meant_for() -> None:
    assert missing_arguments(takes) == ["answer", "size"]
    assert missing_arguments(takes, only_by_keyword=True) == ["size"]
