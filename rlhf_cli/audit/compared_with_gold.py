"""Compare the scores of one kind of degenerate answer with those of the gold answers to the same rows."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from rlhf_cli.audit.audit_result import Contribution, KindResult
from rlhf_cli.audit.degenerate_answers import Kind
from rlhf_cli.measure.scored_rows import ScoredRow
from rlhf_cli.numerics.intervals import wilson

_ROUNDING = 1e-9


NEARLY = 0.8
"""An answer that closes this share of the gap between the median degenerate total and the gold's is nearly as good."""


@dataclass(frozen=True)
class GoldRow:
    """The gold answer's score in a row, and the minimum and median total of the degenerate answers there.

    If the gold answer gets no more than the minimum, the rewards do not recognise it. Then no answer can tie with it,
    but a higher total still beats it.
    """

    scored: ScoredRow
    floor: float | None
    usual: float | None

    @property
    def is_recognised(self) -> bool:
        """Return whether the gold answer gets more than the worst of the others."""
        total = self.scored.total
        return total is not None and self.floor is not None and total > self.floor + room(total)


def room(total: float) -> float:
    """Return the tolerance for equal totals."""
    return _ROUNDING * max(1.0, abs(total))


def compared(
    kind: Kind,
    attacks: Mapping[int, tuple[str, ScoredRow]],
    gold: Mapping[int, GoldRow],
    *,
    main: str | None,
    least_share: float,
) -> KindResult:
    """Return the comparison of one variant of a kind with the gold answers, row by row.

    attacks: row -> (text, its score). gold: by row. An answer without a total counts as losing, because it does not
        enter any advantage. `main`: the component that distinguishes gold answers from the others, or None.
        `least_share`: the kind is a hole if the lower end of the interval of its share is above.
    """
    rows = [row for row in gold if row in attacks]
    beaten, tied, fooled, near, margins = [], [], [], [], []
    for row in rows:
        attack, right = attacks[row][1].total, gold[row].scored.total
        if attack is None or right is None:
            continue
        margins.append(attack - right)
        if attack > right + room(right):
            beaten.append(row)
        elif gold[row].is_recognised and attack >= right - room(right):
            tied.append(row)
        elif main is not None and _reaches(main, attacks[row][1], gold[row].scored):
            fooled.append(row)
        elif (usual := gold[row].usual) is not None and usual < right and attack >= usual + NEARLY * (right - usual):
            near.append(row)
    share = wilson(len(beaten) + len(tied), len(rows))
    at_all = wilson(len(beaten) + len(tied) + len(fooled) + len(near), len(rows))
    open_rows = [*beaten, *tied] or fooled or near or rows or list(attacks)
    contributions = _contributions(
        [attacks[row][1] for row in open_rows], [gold[row].scored for row in open_rows if row in gold]
    )
    totals = [one.total for _, one in attacks.values() if one.total is not None]
    errors = {
        name: reward.error
        for _, scored in attacks.values()
        for name, reward in scored.rewards.items()
        if reward.error is not None
    }
    is_hole = share.low is not None and share.low > least_share
    is_near = not is_hole and at_all.low is not None and at_all.low > least_share
    return KindResult(
        name=kind.name,
        caption=kind.caption,
        text=attacks[open_rows[0]][0],
        mean_total=fmean(totals) if totals else None,
        rows=len(rows),
        beats=len(beaten),
        ties=len(tied),
        share=share,
        margin=fmean(margins) if margins else None,
        is_hole=is_hole,
        is_near=is_near,
        let_in=main if is_near and fooled else _let_in(contributions) if is_hole or is_near or not gold else None,
        contributions=contributions,
        errors=errors,
        shown_row=open_rows[0],
    )


def main_component(
    gold: Mapping[int, ScoredRow],
    attacks: Sequence[tuple[int, ScoredRow]],
    own: Collection[str],
    *,
    others: Sequence[tuple[int, ScoredRow]] = (),
) -> str | None:
    """Return the component that best distinguishes gold answers: the one whose gold score the fewest attacks reach.

    gold: by row. attacks: (row, score). own: the components without a gate, because a gated one only repeats its gate's
        information. others: the attacks that are right answers to other rows. If a component pays these less,
        components that do not, such as a form reward, are excluded. Only components that pay gold answers more than the
        median other answer count; of equals the one that pays them most. Return None if there is none.
    """
    rows = [(scored, gold[row]) for row, scored in attacks if row in gold]
    if not rows:
        return None
    of_others = [(other, gold[row]) for row, other in others if row in gold]
    knowing = {name for name in own if not all(_reaches(name, other, right) for other, right in of_others)}
    usual = [other for other, _ in (of_others if knowing else rows)]
    found = []
    for name, value in contributions_of(list(gold.values())).items():
        gain = (value or 0.0) - median(other.rewards[name].weighted or 0.0 for other in usual)
        if gain > _ROUNDING and name in (knowing or own):
            found.append((sum(_reaches(name, attack, right) for attack, right in rows), -gain, name))
    return min(found)[-1] if found else None


def _reaches(name: str, attack: ScoredRow, gold: ScoredRow) -> bool:
    """Return whether a component pays the answer as much as the gold one, and the gold one more than 0."""
    paid, right = attack.rewards[name].weighted, gold.rewards[name].weighted
    return paid is not None and right is not None and right > 0 and paid >= right - room(right)


def contributions_of(rows: Sequence[ScoredRow]) -> dict[str, float | None]:
    """Return each component's mean weighted reward over rows; a component that does not apply counts as 0."""
    if not rows:
        return {}
    return {name: fmean(row.rewards[name].weighted or 0.0 for row in rows) for name in rows[0].rewards}


def _contributions(attacks: Sequence[ScoredRow], gold: Sequence[ScoredRow]) -> dict[str, Contribution]:
    of_gold = contributions_of(gold)
    return {
        name: Contribution(attack=value or 0.0, gold=of_gold.get(name))
        for name, value in contributions_of(attacks).items()
    }


def _let_in(contributions: Mapping[str, Contribution]) -> str | None:
    """Return the component that pays the most compared with the gold answer; of equals the one that pays the most.

    Return None if no component pays anything: then the gold answer is not rewarded either.
    """

    def paid(name: str) -> tuple[float, float]:
        one = contributions[name]
        return round(one.attack - (one.gold or 0.0), 9), one.attack

    best = max(contributions, key=paid, default=None)
    return None if best is None or (paid(best)[0] <= 0 and contributions[best].attack == 0) else best
