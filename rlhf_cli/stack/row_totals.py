"""Say whether a row has a total of its own. No torch.

Training settles the rows of a batch together. An evaluation and `rlhf score` have rows that are no such batch, and what
is taken from the other rows of one cannot be had there: a group's or a batch's deviation, z-scores within a group. The
running deviation can, where the training's own state is at hand. The deviation of the rows that happen to be evaluated
is no substitute: totals would change with the company a row is in, and those of two evaluations would have two units.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

_DIVISORS = {
    "group": "the deviation of a group in training",
    "batch": "the deviation of a batch in training",
    "running": "the deviation of all that training has scored",
}
"""What the values of `normalize` divide a score by; no other value needs any row but its own."""


def relative_rewards(normalize: Mapping[str, str], seen: Collection[str] = ()) -> list[str]:
    """Return the names of the rewards that have no value but among other rows.

    normalize: name -> the reward's `normalize`. seen: the names whose running deviation is known.
    """
    return [name for name, how in normalize.items() if how in _DIVISORS and not (how == "running" and name in seen)]


def why_no_total(normalize: Mapping[str, str], aggregate: object, seen: Collection[str] = ()) -> str | None:
    """Return why a row has no total but among other rows, None where it has one. Arguments as above."""
    relative = relative_rewards(normalize, seen)
    if relative:
        name = relative[0]
        return f"rewards.{name}.normalize={normalize[name]} divides by {_DIVISORS[normalize[name]]}"
    if aggregate == "normalize_then_sum":
        return "aggregate=normalize_then_sum sums z-scores within a group in training"
    return None
