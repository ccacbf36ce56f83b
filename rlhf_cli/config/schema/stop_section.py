"""Defines `stop`: rules that end a run by what it logs, as it would end by itself: saved, finished, exit code 0."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from pydantic import Field

from rlhf_cli.config.schema.section import Section
from rlhf_cli.suggest import nearest

_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
_WHEN = re.compile(r"^\s*(?P<metric>[^\s<>=]+)\s*(?P<sign>>=|<=|>|<)\s*(?P<number>[^\s<>=]+)\s*$")
_EXPECTED = "METRIC, then one of > >= < <=, then a number, such as kl/k1_policy_ref > 0.5"
RULE_KEYS = ("when", "for")
_NONE = (None, False, "off")


class StopRule(Section):
    """A rule that ends a run: `when` is METRIC > NUMBER (or >=, <, <=), `for` in how many log events in a row.

    METRIC is a name of metrics.jsonl, or the name of a reward, which stands for its raw mean; `total` is that of all
    rewards, and `step` the number of the step. Log events without the metric count neither way.
    """

    when: str
    log_events: int = Field(default=1, gt=0, alias="for")

    @property
    def metric(self) -> str:
        """Return the name that is written in `when`."""
        return parsed(self.when)[0]

    def holds(self, value: float) -> bool:
        """Return whether a value of the metric meets the rule; NaN meets none."""
        _, sign, bound = parsed(self.when)
        return _OPERATORS[sign](value, bound)


StopRules: TypeAlias = StopRule | dict[str, StopRule] | list[StopRule] | None


def parsed(when: str) -> tuple[str, str, float]:
    """Return (metric, sign, bound) of a rule's text. Raises ValueError where it is none."""
    match = _WHEN.match(when)
    if match is None:
        raise ValueError(f"{_EXPECTED}; {when!r} is not")
    try:
        bound = float(match["number"])
    except ValueError:
        raise ValueError(f"a number after {match['sign']}; {match['number']!r} is none") from None
    if not math.isfinite(bound):
        raise ValueError(f"a finite number after {match['sign']}")
    return match["metric"], match["sign"], bound


def checked_rules(value: object) -> object:
    """Return one rule, a list of them or named ones as they are, null for none.

    Raises ValueError that says which part is wrong; one message for all shapes it may have.
    """
    if value in _NONE:
        return None
    if isinstance(value, StopRule):
        return value
    if isinstance(value, Mapping) and (set(value) & set(RULE_KEYS) or not value):
        return _checked_rule(value, "")
    if isinstance(value, Mapping):
        return {name: _checked_rule(rule, f"{name}: ") for name, rule in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_checked_rule(rule, f"rule {number}: ") for number, rule in enumerate(value, 1)]
    raise ValueError("{when: METRIC > NUMBER, for: LOG EVENTS}, a list of such rules, rules with names, or null")


def _checked_rule(rule: object, place: str) -> object:
    if isinstance(rule, StopRule):
        return rule
    if not isinstance(rule, Mapping):
        close = nearest(place.removesuffix(": "), RULE_KEYS)
        guess = f"; did you mean {close!r}?" if close else ""
        raise ValueError(f"{place}{{when: METRIC > NUMBER, for: LOG EVENTS}}{guess}")
    for key in rule:
        if key not in RULE_KEYS:
            close = nearest(str(key), RULE_KEYS)
            raise ValueError(f"{place}`when` and `for` alone, not {key!r}" + (f"; try {close}" if close else ""))
    when, log_events = rule.get("when"), rule.get("for", 1)
    if not isinstance(when, str):
        raise ValueError(f"{place}`when: METRIC > NUMBER`" + ("" if when is None else f", not {when!r}"))
    try:
        parsed(when)
    except ValueError as error:
        raise ValueError(f"{place}{error}") from None
    if isinstance(log_events, bool) or not isinstance(log_events, int) or log_events < 1:
        raise ValueError(f"{place}`for` as a number of log events, 1 or more, not {log_events!r}")
    return rule


def rules_of(stop: StopRules) -> dict[str, StopRule]:
    """Return the rules by their keys below `stop`: '' for one alone, `0`, `1` in a list."""
    if stop is None:
        return {}
    if isinstance(stop, StopRule):
        return {"": stop}
    return {str(number): rule for number, rule in enumerate(stop)} if isinstance(stop, list) else dict(stop)
