"""Reads what TRL measures beside rewards: loss, accuracy and margin of pairs, accuracy of tokens; also held out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rlhf_cli.runs.metrics_file import Event, series, start_and_end

_SIGNS = {
    "loss": -1,
    "accuracy": 1,
    "margin": 1,
    "rewards/accuracies": 1,
    "rewards/margins": 1,
    "mean_token_accuracy": 1,
}
"""Maps TRL's name -> whether more is better (1) or worse (-1), in the order of a table."""

_HELD_OUT = "eval_"


@dataclass(frozen=True)
class Measure:
    """A metric at the start and at the end of training. `sign` is 1 where more is better, -1 where less is."""

    label: str
    sign: int
    start: float
    end: float


def measures(events: Sequence[Event]) -> list[Measure]:
    """Return all measures that were logged, of the training rows and then of the held-out ones.

    Of the training rows it is the mean of the first and last tenth of the log events, of the held-out ones the first
    and the last value.
    """
    return _measures_of(events, [prefix + name for prefix in ("", _HELD_OUT) for name in _SIGNS])


def _measures_of(events: Sequence[Event], names: Iterable[str]) -> list[Measure]:
    measured = []
    for name in names:
        values = series(events, name)[1]
        if not values:
            continue
        is_held_out, plain = name.startswith(_HELD_OUT), name.removeprefix(_HELD_OUT)
        span = (values[0], values[-1]) if is_held_out else start_and_end(values)
        assert span is not None
        label = plain.removeprefix("rewards/").replace("_", " ").replace("/", " ")
        measured.append(Measure(label + (", held out" if is_held_out else ""), _SIGNS.get(plain, 1), *span))
    return measured
