"""The section `expect`: results a run has to reach, checked at its end and by `rlhf verify`."""

from __future__ import annotations

import math
import re
from typing import Annotated, Literal, TypeAlias

from pydantic import BeforeValidator, Field, Tag, TypeAdapter, model_validator

from rlhf_cli.config.schema.section import Bounds, Section, one_or_several

END, BEST, FIRST = "end", "best", "first"
_LAST = re.compile(r"^last-([1-9]\d*)$")
_BOUNDS = ("at_least", "at_most", "between")


def _place(at: object) -> object:
    is_step = isinstance(at, int) and not isinstance(at, bool) and at > 0
    is_word = isinstance(at, str) and (at in (END, BEST, FIRST) or _LAST.match(at) is not None)
    if not (is_step or is_word):
        raise ValueError("end, best, first, last-K (K log events) or the number of a step")
    return at


class Expectation(Section):
    """A result that a run has to reach: a metric, where to read it, and a bound.

    `metric` is a name in metrics.jsonl, or the name of a reward, which means its mean raw score; `total` means the sum
    of all rewards. `at` says where to read it: `end` is the mean of the last tenth of the log events, `last-K` that of
    the last K, `first` that of the first tenth, `best` the best mean of any tenth in a row, and a number is a step,
    read as `end` would have been at that step. For an evaluation's metric `end` is the last evaluation. Give exactly
    one bound: `at_least`, `at_most` or `between`, all inclusive.
    """

    metric: Annotated[str, Field(min_length=1)]
    at: Annotated[Literal["end", "best", "first"] | str | int, BeforeValidator(_place)] = "end"
    at_least: float | None = None
    at_most: float | None = None
    between: Bounds | None = None

    @model_validator(mode="after")
    def _one_bound(self) -> Expectation:
        given = [name for name in _BOUNDS if getattr(self, name) is not None]
        if given == ["at_least", "at_most"]:
            raise ValueError(f"one bound, not two: between: [{self.at_least:g}, {self.at_most:g}]")
        if len(given) != 1:
            raise ValueError("exactly one bound to compare with: at_least, at_most, or between")
        if self.at == BEST and self.between:
            raise ValueError("at_least or at_most with `at: best`: the bound says whether more or less is better")
        return self

    @property
    def low(self) -> float:
        """Return the smallest value that meets it, minus infinity without a lower bound."""
        return self.between[0] if self.between else -math.inf if self.at_least is None else self.at_least

    @property
    def high(self) -> float:
        """Return the largest value that meets it, infinity without an upper bound."""
        return self.between[1] if self.between else math.inf if self.at_most is None else self.at_most

    def is_met_by(self, value: float) -> bool:
        """Return whether a value is within the bound; NaN never is."""
        return self.low <= value <= self.high

    @property
    def last_events(self) -> int | None:
        """Return the K of `last-K`, None for a tenth of the log events."""
        match = _LAST.match(self.at) if isinstance(self.at, str) else None
        return int(match[1]) if match else None

    @property
    def bound(self) -> str:
        """Return the bound in words: `at least 0.75`."""
        if self.between:
            return f"between {self.between[0]:g} and {self.between[1]:g}"
        return f"at least {self.at_least:g}" if self.at_least is not None else f"at most {self.at_most:g}"

    @property
    def place(self) -> str:
        """Return in words where it is read: `the end`, `step 100`."""
        if isinstance(self.at, int):
            return f"step {self.at}"
        return {END: "the end", BEST: "its best", FIRST: "the start"}.get(self.at, self.at)


Expectations: TypeAlias = Annotated[
    Annotated[Expectation, Tag("one")]
    | Annotated[dict[str, Expectation], Tag("named")]
    | Annotated[list[Expectation], Tag("list")]
    | Annotated[None, BeforeValidator(lambda _: None), Tag("none")],
    one_or_several(("metric", "at", *_BOUNDS), "{metric: NAME, at: end, at_least: NUMBER}"),
]


def expectations_of(expect: Expectations) -> dict[str, Expectation]:
    """Return the expectations by their keys below `expect`: '' for a single one, `0`, `1` in a list."""
    if expect is None:
        return {}
    if isinstance(expect, Expectation):
        return {"": expect}
    return {str(number): one for number, one in enumerate(expect)} if isinstance(expect, list) else dict(expect)


def read_expectations(frozen: object) -> dict[str, Expectation]:
    """Return the expectations in a frozen configuration. Raise ValueError if one is invalid."""
    found: Expectations = TypeAdapter(Expectations).validate_python(frozen)
    return expectations_of(found)
