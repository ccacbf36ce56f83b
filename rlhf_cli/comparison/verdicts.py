"""State in words which values of a key are significantly better, which are undecided, and how many seeds it takes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlhf_cli.comparison.measures import Measure
from rlhf_cli.comparison.over_seeds import MEAN
from rlhf_cli.comparison.over_seeds import estimate as estimate_over
from rlhf_cli.comparison.paired_differences import (
    BETTER,
    EQUAL,
    IMPOSSIBLE,
    MOST_SEEDS,
    UNDECIDED,
    WORSE,
    PairedDifference,
    Values,
    paired_difference,
    pairs_of,
)
from rlhf_cli.comparison.settings import Grouped
from rlhf_cli.comparison.what_differs import Axis
from rlhf_cli.numerics.intervals import Estimate

FEW_SEEDS = 3
"""With at most this many seeds, the estimated deviation is very uncertain."""


@dataclass(frozen=True)
class Verdict:
    """The result for one measure and the values of one key. `text` is the verdict in a sentence or two.

    `values` are those of the key; `baseline` is the value that the others are compared with, or None if all pairs are
    compared. `arms` maps value -> its own estimate over the seeds, averaged over the other keys that differ.
    """

    measure: Measure
    key: str
    values: tuple[str, ...]
    baseline: str | None
    differences: tuple[PairedDifference, ...]
    arms: Mapping[str, Estimate]
    text: str

    @property
    def winner(self) -> str | None:
        """Return the value that is significantly better than every other one, or None.

        With a baseline, the other values are not compared with each other, so only two values can have a winner.
        """
        if self.measure.sign == 0:
            return None  # neither more nor less of it is better
        beaten = {(one.value, one.other) if one.outcome == BETTER else (one.other, one.value) for one in self._decided}
        wins = {value: {other for winner, other in beaten if winner == value} for value in self.values}
        return next((value for value in self.values if wins[value] == {*self.values} - {value}), None)

    @property
    def _decided(self) -> list[PairedDifference]:
        return [one for one in self.differences if one.outcome in (BETTER, WORSE)]


def verdicts_on(
    measures: Sequence[Measure],
    grouped: Grouped,
    values_of: Mapping[str, Mapping[str, float]],
    axis: Axis,
    *,
    baseline: str | None,
    estimator: str = MEAN,
) -> list[Verdict]:
    """Return one verdict per measure; all their comparisons form one family.

    `values_of` maps label of a measure -> name of a run -> number. If other keys differ too, a seed's difference is the
    mean over them, so that a seed stays one independent observation.
    """
    texts = list(dict.fromkeys(setting.values[axis.key] for setting in grouped.settings))
    pairs = pairs_of(texts, baseline)
    comparisons = len(pairs) * len(measures)
    found = []
    for measure in measures:
        numbers = values_of[measure.label]
        differences = tuple(
            paired_difference(
                _balanced(grouped, numbers, axis.key, (value, other)),
                value,
                other,
                sign=measure.sign or 1,
                comparisons=comparisons,
            )
            for value, other in pairs
        )
        arms = {
            text: estimate_over(list(by_seed.values()), estimator)
            for text, by_seed in _balanced(grouped, numbers, axis.key, texts).items()
        }
        text = in_words(measure, differences, baseline)
        found.append(Verdict(measure, axis.short, tuple(texts), baseline, differences, arms, text))
    return found


def in_words(measure: Measure, differences: Sequence[PairedDifference], baseline: str | None = None) -> str:
    """Return the differences on one measure in words: `0.1 beats 0 on correct by 0.04 [0.01, 0.07] (3 seeds).`"""
    on = measure.label if measure.sign > 0 else f"{measure.label} ({measure.direction})"
    said = _decided([one for one in differences if one.outcome in (BETTER, WORSE)], on)
    said += _undecided([one for one in differences if one.outcome == UNDECIDED], measure.label, baseline)
    said += [
        f"{one.value} and {one.other} are equal on {measure.label} in every seed"
        for one in differences
        if one.outcome == EQUAL
    ]
    said += _impossible([one for one in differences if one.outcome == IMPOSSIBLE], measure.label)
    return " ".join(f"{sentence}." for sentence in said)


def decimals(half_width: float) -> int:
    """Return the number of decimals for two significant digits of a half-width: 0.034 needs three."""
    if not math.isfinite(half_width) or half_width <= 0:
        return 3
    return min(5, max(0, 1 - math.floor(math.log10(half_width))))


def decimals_of(largest: float) -> int:
    """Return the number of decimals for three significant digits: 0.547, 5.47, 54.7."""
    if largest == 0 or not math.isfinite(largest):
        return 3
    return min(5, max(0, 2 - math.floor(math.log10(largest))))


def _decided(differences: Sequence[PairedDifference], on: str) -> list[str]:
    """Return one clause per winner: which values it beats and by how much."""
    beaten: dict[str, list[str]] = {}
    for one in differences:
        mean, low, high = one.difference.mean, one.difference.low, one.difference.high
        assert mean is not None
        assert low is not None
        assert high is not None
        winner, loser = (one.value, one.other) if one.outcome == BETTER else (one.other, one.value)
        near, far = sorted((abs(low), abs(high)))  # both ends are on the same side of zero
        digits = decimals((high - low) / 2)
        by = f"by {abs(mean):.{digits}f} [{near:.{digits}f}, {far:.{digits}f}]"
        text = f"{loser} {by}" if winner in beaten else f"{loser} on {on} {by}"
        beaten.setdefault(winner, []).append(text)
    seeds = _seeds(differences)
    return [f"{winner} beats {_listed(losers)} {seeds}" for winner, losers in beaten.items()]


def _undecided(pairs: Sequence[PairedDifference], label: str, baseline: str | None) -> list[str]:
    """Return one sentence with all undecided pairs, and one with the pair that needs the fewest more seeds."""
    if not pairs:
        return []
    names = list(dict.fromkeys(name for one in pairs for name in (one.other, one.value)))
    if baseline is not None:
        between = f"between {baseline} and {_listed([name for name in names if name != baseline], 'or')}"
    elif len(pairs) == len(names) * (len(names) - 1) // 2:
        between = f"between {_listed(names)}"
    else:
        between = _listed([f"between {one.other} and {one.value}" for one in pairs], "nor")
    return [f"No clear difference in {label} {between} {_seeds(pairs)}", _more_seeds(min(pairs, key=_seeds_away))]


def _seeds(pairs: Sequence[PairedDifference]) -> str:
    """Return `(3 seeds)`, or `(3 to 5 seeds)` if pairs have different numbers of common seeds."""
    counts = sorted({len(one.seeds) for one in pairs})
    return f"({' to '.join(map(str, dict.fromkeys((counts[0], counts[-1]))))} seeds)" if counts else ""


def _seeds_away(one: PairedDifference) -> tuple[float, float]:
    """Sort pairs by how many more seeds would decide them, then by larger effect.

    A pair with few seeds and a large effect may need fewer than one with many seeds and a larger t statistic.
    """
    needed = one.seeds_needed
    return math.inf if needed is None else needed - len(one.seeds), -abs(one.effect or 0.0)


def _listed(names: Sequence[str], word: str = "and") -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} {word} {names[-1]}"


def _more_seeds(one: PairedDifference) -> str:
    count, needed = len(one.seeds), one.seeds_needed
    rough = "; rough estimate" if count <= FEW_SEEDS else ""
    which = f"{one.other} from {one.value}"
    if needed is None:
        return f"Even {MOST_SEEDS} seeds would not separate {which}{rough}"
    more = max(1, needed - count)
    return f"About {more} more seed{'s' if more > 1 else ''} would separate {which}{rough}"


def _impossible(pairs: Sequence[PairedDifference], label: str) -> list[str]:
    by_count: dict[int, list[PairedDifference]] = {}
    for one in pairs:
        by_count.setdefault(len(one.seeds), []).append(one)
    said = []
    for count, some in by_count.items():
        named = ", ".join(f"{one.other} and {one.value}" for one in some[:3]) + (" and others" if len(some) > 3 else "")
        if count > 1:
            said.append(f"No interval for {named}: they differ on {label} by the same in every seed")
            continue
        have = "no seed" if count == 0 else "one seed"
        said.append(
            f"No verdict on {label} for {named}: they have {have} in common, all else equal, and it takes two or more"
        )
    return said


def _balanced(grouped: Grouped, numbers: Mapping[str, float], key: str, texts: Sequence[str]) -> Values:
    """Return value -> seed -> mean over the other keys, using only cells that all these values have for the seed."""
    cells: dict[str, dict[str, dict[tuple[str, ...], float]]] = {text: {} for text in texts}
    for setting in grouped.settings:
        text = setting.values[key]
        if text not in cells:
            continue
        rest = tuple(value for name, value in setting.values.items() if name != key)
        for seed, run in setting.by_seed.items():
            number = numbers.get(run.name, math.nan)
            if math.isfinite(number):
                cells[text].setdefault(seed, {})[rest] = number
    balanced: dict[str, dict[str, float]] = {text: {} for text in texts}
    for text in texts:
        for seed, by_rest in cells[text].items():
            common = [rest for rest in by_rest if all(rest in cells[other].get(seed, {rest: 0}) for other in texts)]
            if common:
                balanced[text][seed] = sum(by_rest[rest] for rest in common) / len(common)
    return balanced
