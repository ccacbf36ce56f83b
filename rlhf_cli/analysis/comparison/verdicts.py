"""Judge which values of a key are significantly better, by differences paired over seeds.

Runs of one seed share their prompts, their sampling and often their starting model, so the effect of a seed on both
cancels in their difference. Over n common seeds the difference has the paired t interval, d ± t(n - 1) s / sqrt(n).

All differences decided together form one family of m comparisons. Bonferroni's intervals, each with level 1 - 5 % / m,
all hold at once with at least 95 % probability, also for dependent comparisons. A difference is
significant if its interval excludes zero. Holm's test would reject slightly more, but intervals consistent with it end
at zero for every rejected hypothesis (Strassburger and Bretz 2008, Statistics in Medicine 27:4914; Guilbaud 2008,
Biometrical Journal 50:678), so they could not show how much better one value is.

The required number of seeds comes from the power of the noncentral t distribution, with the observed d / s as if exact.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import cast

from rlhf_cli.analysis.comparison.logged_run import DifferingKey
from rlhf_cli.analysis.comparison.measures import RunMeasure
from rlhf_cli.analysis.comparison.settings import GroupedRuns, estimate_over
from rlhf_cli.numerics.intervals import LEVEL, Estimate, student, t_quantile

POWER = 0.8
MOST_SEEDS = 1000
_ROUNDING = 2.0**-22
"""Share of a value by which TRL's means may differ where the exact ones do not: two roundings to float32."""
BETTER, WORSE, UNDECIDED, EQUAL, IMPOSSIBLE = "better", "worse", "undecided", "equal", "impossible"

Values = Mapping[str, Mapping[str, float]]
"""Map value of the key -> seed -> measured value."""


@dataclass(frozen=True)
class PairedDifference:
    """The difference `value` - `other` over their common seeds, in units of the metric; `outcome` is about `value`.

    `difference` has the simultaneous interval of its family; `effect` is d / s, `p_value` is for this comparison alone,
    `p_adjusted` is multiplied by the number of comparisons, at most 1.
    """

    value: str
    other: str
    seeds: tuple[str, ...]
    difference: Estimate
    outcome: str
    comparisons: int
    effect: float | None = None
    p_value: float | None = None
    p_adjusted: float | None = None

    @property
    def interval(self) -> tuple[float, float, float]:
        """Return (mean, low, high) of a difference that is decided or undecided."""
        return cast(tuple[float, float, float], (self.difference.mean, self.difference.low, self.difference.high))

    @property
    def seeds_needed(self) -> int | None:
        """Return how many seeds would probably decide an undecided difference; None if a thousand would not."""
        effect = self.effect if self.outcome == UNDECIDED else None
        return None if effect is None else seeds_needed(effect, comparisons=self.comparisons)


def pairs_of(values: Sequence[str], baseline: str | None) -> list[tuple[str, str]]:
    """Return the pairs to compare: each value with the baseline, or all pairs without one."""
    if baseline is not None:
        return [(value, baseline) for value in values if value != baseline]
    return [(later, earlier) for earlier, later in itertools.combinations(values, 2)]


def paired_difference(values: Values, value: str, other: str, *, sign: int, comparisons: int) -> PairedDifference:
    """Compare two values of a key. `sign` is -1 if less is better, else 1; `comparisons` is the family's m."""
    from scipy.special import stdtr

    here, there = values.get(value, {}), values.get(other, {})
    seeds = tuple(seed for seed in here if seed in there and math.isfinite(here[seed]) and math.isfinite(there[seed]))
    gaps = [here[seed] - there[seed] for seed in seeds]
    if len(gaps) < 2:
        only = Estimate(gaps[0] if gaps else None, None, None, len(gaps))
        return PairedDifference(value, other, seeds, only, IMPOSSIBLE, comparisons)
    deviation, mean = stdev(gaps), fmean(gaps)
    rounding = _ROUNDING * max(map(abs, [*gaps, *(here[seed] for seed in seeds)]))
    if deviation <= rounding:
        outcome = EQUAL if abs(mean) <= rounding else IMPOSSIBLE
        return PairedDifference(value, other, seeds, Estimate(mean, None, None, len(gaps)), outcome, comparisons)
    interval = student(gaps, comparisons=comparisons)
    low, high = cast(tuple[float, float], (interval.low, interval.high))
    is_decided = low > 0 or high < 0
    outcome = (BETTER if mean * sign > 0 else WORSE) if is_decided else UNDECIDED
    effect = mean / deviation
    p_value = float(2 * stdtr(len(gaps) - 1, -abs(effect * math.sqrt(len(gaps)))))
    p_adjusted = min(1.0, comparisons * p_value)
    return PairedDifference(value, other, seeds, interval, outcome, comparisons, effect, p_value, p_adjusted)


def power_of(effect: float, num_seeds: int, *, comparisons: int) -> float:
    """Return the probability that the interval over `num_seeds` excludes zero on the right side, for this d / s."""
    from scipy.special import nctdtr

    critical = t_quantile(1 - (1 - LEVEL) / (2 * comparisons), num_seeds - 1)
    shift = abs(effect) * math.sqrt(num_seeds)
    missed = float(nctdtr(num_seeds - 1, shift, critical))
    if math.isnan(missed):  # SciPy's series does not converge in the far tail, where the answer is 0 or 1
        missed = 0.0 if shift > critical else 1.0
    return 1 - missed


def seeds_needed(effect: float, *, comparisons: int) -> int | None:
    """Return the smallest number of seeds with a power of 80 %, or None if a thousand are not enough."""
    counts = range(2, MOST_SEEDS + 1)
    place = bisect.bisect_left(counts, POWER, key=lambda count: power_of(effect, count, comparisons=comparisons))
    return counts[place] if effect and place < len(counts) else None


@dataclass(frozen=True)
class MeasureVerdict:
    """The result for one measure and the values of one key. `text` is the verdict in a sentence or two.

    Without a `baseline` all pairs are compared. `arms` maps value -> its own estimate over the seeds, averaged over the
    other keys that differ.
    """

    measure: RunMeasure
    key: str
    values: tuple[str, ...]
    baseline: str | None
    differences: tuple[PairedDifference, ...]
    arms: Mapping[str, Estimate]
    text: str

    @property
    def winner(self) -> str | None:
        """Return the value that is significantly better than every other one; with a baseline, of two values only."""
        if self.measure.sign == 0:
            return None  # neither more nor less of it is better
        wins = {(pair.value, pair.other) for pair in self.differences if pair.outcome == BETTER}
        wins |= {(pair.other, pair.value) for pair in self.differences if pair.outcome == WORSE}
        beats_all = (all((one, other) in wins for other in self.values if other != one) for one in self.values)
        return next(itertools.compress(self.values, beats_all), None)


def verdicts_on(
    measures: Sequence[RunMeasure],
    grouped: GroupedRuns,
    values_of: Mapping[str, Mapping[str, float]],
    axis: DifferingKey,
    *,
    baseline: str | None,
) -> list[MeasureVerdict]:
    """Return one verdict per measure; the comparisons of those that differ between runs form one family.

    `values_of`: label of a measure -> name of a run -> number. A seed's difference is the mean over the other keys that
    differ, so that a seed stays one independent observation.
    """
    texts = list(dict.fromkeys(setting.values[axis.key] for setting in grouped.settings))
    pairs = pairs_of(texts, baseline)
    differing = [len({*filter(math.isfinite, values_of[measure.label].values())}) > 1 for measure in measures]
    comparisons = len(pairs) * max(1, sum(differing))
    verdicts = []
    for measure in measures:
        numbers, sign = values_of[measure.label], measure.sign or 1
        balanced = {pair: _balanced(grouped, numbers, axis.key, pair) for pair in pairs}
        differences = tuple(
            paired_difference(balanced[pair], *pair, sign=sign, comparisons=comparisons) for pair in pairs
        )
        by_value = _balanced(grouped, numbers, axis.key, texts)
        arms = {text: estimate_over([*by_seed.values()]) for text, by_seed in by_value.items()}
        text = in_words(measure, differences, baseline)
        verdicts.append(MeasureVerdict(measure, axis.short, tuple(texts), baseline, differences, arms, text))
    return verdicts


def in_words(measure: RunMeasure, differences: Sequence[PairedDifference], baseline: str | None = None) -> str:
    """Return the differences on one measure in words: `0.1 beats 0 on correct by 0.04 [0.01, 0.07] (3 seeds).`"""
    label = measure.label
    on = label if measure.sign > 0 else f"{label} ({measure.direction})"
    pairs: dict[str, list[PairedDifference]] = {}
    for pair in differences:
        pairs.setdefault(WORSE if pair.outcome == BETTER else pair.outcome, []).append(pair)
    beaten: dict[str, list[str]] = {}
    for pair in pairs.get(WORSE, []):
        mean, low, high = pair.interval
        winner, loser = (pair.value, pair.other) if pair.outcome == BETTER else (pair.other, pair.value)
        small, large = sorted((abs(low), abs(high)))  # both ends are on the same side of zero
        digits = decimals((high - low) / 2)
        by = f"by {abs(mean):.{digits}f} [{small:.{digits}f}, {large:.{digits}f}]"
        text = f"{loser} {by}" if winner in beaten else f"{loser} on {on} {by}"
        beaten.setdefault(winner, []).append(text)
    sentences = [f"{winner} beats {_listed(losers)} {_seeds(pairs[WORSE])}" for winner, losers in beaten.items()]
    sentences += _undecided(pairs.get(UNDECIDED, []), label, baseline)
    sentences += [f"{pair.value} and {pair.other} are equal on {label} in every seed" for pair in pairs.get(EQUAL, [])]
    impossible = pairs.get(IMPOSSIBLE, [])
    for count in dict.fromkeys(len(pair.seeds) for pair in impossible):
        some = [f"{pair.other} and {pair.value}" for pair in impossible if len(pair.seeds) == count]
        shown = ", ".join(some[:3]) + (" and others" if len(some) > 3 else "")
        if count > 1:
            sentences.append(f"No interval for {shown}: they differ on {label} by the same in every seed")
        else:
            shared = "one comparable seed" if count else "no comparable seed"
            sentences.append(f"No verdict on {label} for {shown}: they share {shared}, a verdict needs two")
    return " ".join(f"{sentence}." for sentence in sentences)


def decimals(half_width: float) -> int:
    """Return the number of decimals for two significant digits of a half-width: 0.034 needs three."""
    return min(5, max(0, 1 - math.floor(math.log10(half_width))))


def _undecided(pairs: Sequence[PairedDifference], label: str, baseline: str | None) -> list[str]:
    """Return one sentence with all undecided pairs, and one with the pair that needs the fewest more seeds."""
    if not pairs:
        return []
    names = list(dict.fromkeys(name for pair in pairs for name in (pair.other, pair.value)))
    if baseline is not None:
        between = f"between {baseline} and {_listed([name for name in names if name != baseline], 'or')}"
    elif len(pairs) == len(names) * (len(names) - 1) // 2:
        between = f"between {_listed(names)}"
    else:
        between = _listed([f"between {pair.other} and {pair.value}" for pair in pairs], "nor")
    # A pair with few seeds and a large effect may need fewer more than one with many seeds and a larger t statistic.
    more = [math.inf if (n := pair.seeds_needed) is None else n - len(pair.seeds) for pair in pairs]
    closest = min(range(len(pairs)), key=lambda place: (more[place], -abs(pairs[place].effect or 0.0)))
    pair, num_more = pairs[closest], more[closest]
    mean, low, high = pair.interval
    digits = decimals((high - low) / 2)
    by = f"{pair.value} - {pair.other}: {mean:+.{digits}f} [{low:+.{digits}f}, {high:+.{digits}f}]"
    seeds = f"Even {MOST_SEEDS} seeds would not"
    if math.isfinite(num_more):
        seeds = f"About {max(1, num_more):.0f} more seed{'s' if num_more > 1 else ''} would"
    unclear = f"No clear difference in {label} {between} {_seeds(pairs)}"
    return [unclear, f"{seeds} separate {pair.other} from {pair.value} ({by})"]


def _seeds(pairs: Sequence[PairedDifference]) -> str:
    """Return `(3 seeds)`, or `(3 to 5 seeds)` if pairs have different numbers of common seeds."""
    counts = sorted({len(pair.seeds) for pair in pairs})
    return f"({' to '.join(map(str, dict.fromkeys((counts[0], counts[-1]))))} seeds)"


def _listed(names: Sequence[str], word: str = "and") -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} {word} {names[-1]}"


def _balanced(grouped: GroupedRuns, numbers: Mapping[str, float], key: str, texts: Sequence[str]) -> Values:
    """Return value -> seed -> mean over the other keys, using only cells that all these values have for the seed."""
    cells: dict[str, dict[str, dict[tuple[str, ...], float]]] = {text: {} for text in texts}
    for setting in grouped.settings:
        rest = tuple(value for name, value in setting.values.items() if name != key)
        for seed, run in setting.by_seed.items():
            number = numbers.get(run.name, math.nan)
            if setting.values[key] in cells and math.isfinite(number):
                cells[setting.values[key]].setdefault(seed, {})[rest] = number
    balanced: dict[str, dict[str, float]] = {text: {} for text in texts}
    for text in texts:
        for seed, by_rest in cells[text].items():
            others = [cells[other][seed] for other in texts if seed in cells[other]]
            common = [rest for rest in by_rest if all(rest in other for other in others)]
            if common:
                balanced[text][seed] = sum(by_rest[rest] for rest in common) / len(common)
    return balanced
