"""Format verdicts for the page: one sentence each, or only the leader if there are many comparisons."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rlhf_cli.comparison.comparison import Asked, Comparison, compare
from rlhf_cli.comparison.paired_differences import BETTER, WORSE
from rlhf_cli.comparison.verdicts import Verdict

_MOST_IN_WORDS = 6
"""With more comparisons than this, the full verdict is too long to read."""

_MOST_KEYS = 4
_MOST_NAMED = 8


@dataclass(frozen=True)
class VerdictLine:
    """The subject of a verdict, its result, and the full text.

    `whole` lists every comparison if `says` only names the leader; otherwise it is ''.
    """

    about: str
    says: str
    whole: str


def verdict_lines(comparison: Comparison) -> list[VerdictLine]:
    """Return one line per measure.

    If several keys differ, judge each key as its own family, or say why it cannot be judged. Return no line if every
    setting has one seed: `comparison.no_verdict` then explains it once for all.
    """
    grouped = comparison.grouped
    if len(grouped.axes) > 1 and not comparison.verdicts and any(len(one.by_seed) > 1 for one in grouped.settings):
        keys = [axis.key for axis in grouped.axes[:_MOST_KEYS]]
        return [line for key in keys for line in _lines(compare(comparison.runs, Asked(by=key)), key)]
    return _lines(comparison, grouped.axes[0].key) if len(grouped.axes) == 1 else []


def _lines(comparison: Comparison, key: str) -> list[VerdictLine]:
    if comparison.no_verdict is None:
        return [_line(verdict) for verdict in comparison.verdicts]
    (short,) = (axis.short for axis in comparison.grouped.axes if axis.key == key)
    about, _, why = comparison.no_verdict.partition(": ")
    return [VerdictLine(f"{short}: no verdict", f"{why}.", "")] if about.endswith(short) else []


def _line(verdict: Verdict) -> VerdictLine:
    about = f"{verdict.key}, by {verdict.measure.label}"
    if len(verdict.differences) <= _MOST_IN_WORDS:
        return VerdictLine(about, verdict.text, "")
    leader = _leader(verdict)
    if leader is None:
        return VerdictLine(about, "No value has an estimate.", verdict.text)
    beaten = set(_beaten_by(verdict, leader))
    held_against = {
        one.other if one.value == leader else one.value
        for one in verdict.differences
        if leader in (one.value, one.other)
    }
    open_ones = [value for value in verdict.values if value in held_against - beaten]
    most = "lowest" if verdict.measure.sign < 0 else "highest"
    says = f"{leader} has the {most} {verdict.measure.label}"
    if beaten:
        says += f", beyond doubt better than {len(beaten)} of {len(held_against)} others"
    if open_ones:
        more = f" and {len(open_ones) - _MOST_NAMED} more" if len(open_ones) > _MOST_NAMED else ""
        says += f"; no clear difference from {', '.join(open_ones[:_MOST_NAMED])}{more}"
    return VerdictLine(about, f"{says}.", verdict.text)


def _leader(verdict: Verdict) -> str | None:
    """Return the value with the best mean, or None if no value has one."""
    sign = verdict.measure.sign or 1
    means = {value: sign * one.mean for value, one in verdict.arms.items() if one.mean is not None}
    return max(means, key=lambda value: means[value]) if means else None


def _beaten_by(verdict: Verdict, leader: str) -> Iterator[str]:
    for one in verdict.differences:
        if one.value == leader and one.outcome == BETTER:
            yield one.other
        elif one.other == leader and one.outcome == WORSE:
            yield one.value
