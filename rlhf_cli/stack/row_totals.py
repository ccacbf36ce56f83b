"""Decide whether a row has a total of its own. Does not import torch.

Training settles the rows of a batch together. An evaluation and `rlhf score` have rows that form no such batch, so a
group's or batch's deviation and z-scores within a group are not available. The running deviation is available if the
training's state is. The deviation of the evaluated rows is no substitute: a row's total would depend on the other rows,
and two evaluations would have different units.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

_DIVISORS = {
    "group": "the deviation of a group in training",
    "batch": "the deviation of a batch in training",
    "running": "the deviation of all that training has scored",
}
"""The divisor that each value of `normalize` needs; other values of `normalize` need no other rows."""


def relative_rewards(normalize: Mapping[str, str], seen: Collection[str] = ()) -> list[str]:
    """Return the names of rewards whose value depends on other rows.

    normalize: name -> the reward's `normalize`. seen: the names whose running deviation is known.
    """
    return [name for name, how in normalize.items() if how in _DIVISORS and not (how == "running" and name in seen)]


def why_no_total(normalize: Mapping[str, str], aggregate: object, seen: Collection[str] = ()) -> str | None:
    """Return why a row has no total of its own, or None if it has one. Arguments as for `relative_rewards`."""
    relative = relative_rewards(normalize, seen)
    if relative:
        name = relative[0]
        return f"rewards.{name}.normalize={normalize[name]} divides by {_DIVISORS[normalize[name]]}"
    if aggregate == "normalize_then_sum":
        return "aggregate=normalize_then_sum sums z-scores within a group in training"
    return None
