"""Defines `expect`: what a run is to have come to, checked at its end and by `rlhf verify`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, TypeAlias

from pydantic import Field

from rlhf_cli.config.schema.section import Section
from rlhf_cli.text.suggest import nearest

END, BEST, FIRST = "end", "best", "first"
_LAST = re.compile(r"^last-([1-9]\d*)$")
_AT = "end, best, first, last-K (K log events) or the number of a step"
_BOUNDS = ("at_least", "at_most", "between")
_KEYS = ("metric", "at", *_BOUNDS)
_NONE = (None, False, "off")
_SHAPE = "{metric: NAME, at: end, at_least: NUMBER}"


class Expectation(Section):
    """A number that a run is to come to: a metric, where it is read, and a bound.

    `metric` is a name of metrics.jsonl, or the name of a reward, which stands for its raw mean; `total` is that of all
    rewards. `at` is `end` (the mean of the last tenth of the log events), `last-K` (of the last K of them), `first` (of
    the first tenth), `best` (the best mean of a tenth in a row), or a step (what `end` was at that step); of what an
    evaluation logs `end` is the last evaluation. One of `at_least`, `at_most`, `between` is the bound, ends included.
    """

    metric: str
    at: str | Annotated[int, Field(gt=0)] = END
    at_least: float | None = None
    at_most: float | None = None
    between: tuple[float, float] | None = None

    @property
    def low(self) -> float:
        """Return the least value that meets it, minus infinity without such a bound."""
        return self.between[0] if self.between else -math.inf if self.at_least is None else self.at_least

    @property
    def high(self) -> float:
        """Return the greatest value that meets it, infinity without such a bound."""
        return self.between[1] if self.between else math.inf if self.at_most is None else self.at_most

    def is_met_by(self, value: float) -> bool:
        """Return whether a value lies within the bound; NaN lies in none."""
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
        """Return where it is read in words: `the end`, `step 100`."""
        if isinstance(self.at, int):
            return f"step {self.at}"
        return {END: "the end", BEST: "its best", FIRST: "the start"}.get(self.at, self.at)


Expectations: TypeAlias = Expectation | dict[str, Expectation] | list[Expectation] | None


def expectations_of(expect: Expectations) -> dict[str, Expectation]:
    """Return the expectations by their keys below `expect`: '' for one alone, `0`, `1` in a list."""
    if expect is None:
        return {}
    if isinstance(expect, Expectation):
        return {"": expect}
    return {str(number): one for number, one in enumerate(expect)} if isinstance(expect, list) else dict(expect)


def checked_expectations(value: object) -> object:
    """Return one expectation, a list of them or named ones, null for none.

    Raises ValueError that says everything that is wrong with any of them; one message for all shapes it may have.
    """
    if value in _NONE or value in ([], {}):
        return None
    if isinstance(value, Expectation):
        return value
    if isinstance(value, Mapping):
        is_one = bool(set(value) & {*_KEYS}) or not any(isinstance(part, Mapping) for part in value.values())
        parts = {"": value} if is_one else {f"{name}: ": part for name, part in value.items()}
    elif isinstance(value, Sequence) and not isinstance(value, str):
        is_one, parts = False, {f"{number}. ": part for number, part in enumerate(value, 1)}
    else:
        raise ValueError(f"a list of such as {_SHAPE}, or null")
    wrong = [f"{place}{problem}" for place, part in parts.items() for problem in _problems(part)]
    if wrong:
        raise ValueError("\n".join(wrong))
    if is_one:
        return _built(value)
    if isinstance(value, Mapping):
        return {name: _built(part) for name, part in value.items()}
    return [_built(part) for part in value]


def _built(part: object) -> Expectation:
    if isinstance(part, Expectation):
        return part
    assert isinstance(part, Mapping)
    between = part.get("between")
    return Expectation.model_validate({**part, "between": None if between is None else tuple(between)})


def _problems(part: object) -> Iterator[str]:
    """Yield what is wrong with one expectation, as what is expected instead."""
    if isinstance(part, Expectation):
        return
    if not isinstance(part, Mapping):
        yield f"{_SHAPE}, not {part!r}"
        return
    for key in part:
        if key not in _KEYS:
            close = nearest(str(key), _KEYS)
            yield f"{', '.join(_KEYS)} alone, not {key!r}" + (f"; did you mean {close}?" if close else "")
    metric, at = part.get("metric"), part.get("at", END)
    if not isinstance(metric, str) or not metric:
        yield "`metric: NAME`, a name of metrics.jsonl" + ("" if metric is None else f", not {metric!r}")
    if isinstance(at, bool) or not (_is_place(at) or (isinstance(at, int) and at > 0)):
        close = nearest(str(at), (END, BEST, FIRST, "last-10")) if isinstance(at, str) else None
        yield f"`at`: {_AT}; {at!r} is none" + (f"; did you mean {close}?" if close else "")
    bounds = [name for name in _BOUNDS if part.get(name) is not None]
    if not bounds:
        yield "something to compare with: at_least, at_most, or between"
    elif len(bounds) > 1:
        both = bounds == ["at_least", "at_most"]
        instead = f"between: [{part['at_least']}, {part['at_most']}]" if both else "one of them"
        yield f"one bound, not {' and '.join(bounds)}: {instead}"
    for name in bounds:
        yield from _bound_problems(name, part[name])
    if at == BEST and bounds == ["between"]:
        yield "at_least or at_most with `at: best`: whether more or less is better follows from the bound"


def _is_place(at: object) -> bool:
    return isinstance(at, str) and (at in (END, BEST, FIRST) or _LAST.match(at) is not None)


def _bound_problems(name: str, value: object) -> Iterator[str]:
    if name != "between":
        if not _is_number(value):
            yield f"{name} as a number, not {value!r}"
        return
    ends = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else []
    if len(ends) != 2 or not all(map(_is_number, ends)):
        yield f"between: [LEAST, MOST], two numbers, not {value!r}"
    elif ends[0] > ends[1]:
        yield f"between: [{ends[1]}, {ends[0]}], the lesser first"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
