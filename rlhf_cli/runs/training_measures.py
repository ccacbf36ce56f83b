"""Read TRL's metrics other than rewards: loss, accuracy and margin of pairs, token accuracy; also held out."""

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
"""Maps TRL's metric name -> 1 if higher is better, -1 if lower is better; in table order."""

_HELD_OUT = "eval_"


@dataclass(frozen=True)
class Measure:
    """A metric at the start and end of training. `sign` is 1 if higher is better, -1 if lower is."""

    label: str
    sign: int
    start: float
    end: float


def measures(events: Sequence[Event]) -> list[Measure]:
    """Return all logged measures, first on the training rows, then on the held-out rows.

    On training rows the values are the means of the first and last tenth of the log events; on held-out rows they are
    the first and last value.
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
