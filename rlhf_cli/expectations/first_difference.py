"""Compare the logs of two runs that should be identical, and find the first step at which they differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from rlhf_cli.json_values import JsonValue
from rlhf_cli.runs.metrics_file import Event
from rlhf_cli.tables.clock_metrics import is_of_the_clock

NOT_LOGGED = "not logged"
LOG_EVENT = "log event"
"""The `metric` of a difference if one of the runs logged nothing at a step."""

_OF_ONE_CALL = ("train_runtime", "train_loss")
"""Names in the last line of a log. It is about one call of the trainer, and a resumed run had several."""
_EVAL = "eval_"
_CAUSES_FIRST = (
    *("epoch", "learning_rate", "num_input_tokens", "num_tokens", "completions/", "rewards/", "reward"),
    *("frac_reward", "sampling/", "kl", "entropy", "ppo/", "clip_ratio", "mean_token", "accuracy", "margin"),
    *("loss", "critic/", "grad_norm"),
)
"""The order of computation in a step: earlier metrics may cause later differences. An evaluation follows its step."""
_NOT_COMPARED = ("step", "time_s")


@dataclass(frozen=True)
class Difference:
    """The first difference of two logs: its place and both values; null if a number was not finite.

    `others` are the other metrics that differ at the same step, in the order of their computation.
    """

    step: int
    metric: str
    before: JsonValue
    after: JsonValue
    others: tuple[str, ...] = ()

    @property
    def size(self) -> float | None:
        """Return the absolute difference, or None if a value is not a number."""
        if isinstance(self.before, int | float) and isinstance(self.after, int | float):
            return abs(self.after - self.before)
        return None


@dataclass(frozen=True)
class LogsCompared:
    """The comparison of two logs up to a step.

    `equal_steps` is the last step up to which everything is equal, `num_events` and `num_numbers` count the compared
    items, `of_the_clock` lists the metrics that were not compared.
    """

    last_step: int
    num_events: int
    num_numbers: int
    of_the_clock: tuple[str, ...]
    equal_steps: int
    difference: Difference | None


def compare_logs(before: Iterable[Event], after: Iterable[Event], *, up_to: int | None = None) -> LogsCompared:
    """Compare two logs event by event, up to a step (None for everything). Numbers must be bitwise equal.

    Ignore clock-based metrics (tables/clock_metrics.py) and the last line, which summarises one call.
    """
    one, other = _by_place(before, up_to), _by_place(after, up_to)
    places = sorted({**one, **other})
    names = dict.fromkeys(name for event in (*one.values(), *other.values()) for name in event)
    clock = tuple(sorted(name for name in names if is_of_the_clock(name)))
    num_events = num_numbers = equal_steps = last_step = 0
    found: Difference | None = None
    for place in places:
        step = place[0]
        if found is not None and step > found.step:
            break
        difference = _difference(step, one.get(place), other.get(place))
        num_events += place in one and place in other
        num_numbers += len([name for name in one.get(place, {}) if _is_compared(name)])
        last_step = step
        if difference is None:
            continue
        if found is None:
            found = difference
        else:  # the evaluation of the same step also differs
            found = Difference(step, found.metric, found.before, found.after, (*found.others, *_named(difference)))
    equal_steps = max((place[0] for place in places if found is None or place[0] < found.step), default=0)
    return LogsCompared(last_step, num_events, num_numbers, clock, equal_steps, found)


def _by_place(events: Iterable[Event], up_to: int | None) -> dict[tuple[int, bool, int], Event]:
    """Return the events by (step, whether an evaluation, index among that kind at that step)."""
    counted: Counter[tuple[int, bool]] = Counter()
    found = {}
    for event in events:
        step = event["step"]
        assert isinstance(step, int | float)
        if any(name in event for name in _OF_ONE_CALL) or (up_to is not None and step > up_to):
            continue
        kind = int(step), any(name.startswith(_EVAL) for name in event)
        found[(*kind, counted[kind])] = event
        counted[kind] += 1
    return found


def _difference(step: int, before: Event | None, after: Event | None) -> Difference | None:
    if before is None or after is None:
        said = [NOT_LOGGED if event is None else "logged" for event in (before, after)]
        return Difference(step, LOG_EVENT, said[0], said[1])
    names = [name for name in {**before, **after} if _is_compared(name)]
    differing = sorted((name for name in names if not _is_same(before, after, name)), key=_rank)  # a stable sort
    if not differing:
        return None
    first, *others = differing
    return Difference(step, first, _shown(before, first), _shown(after, first), tuple(others))


def _is_compared(name: str) -> bool:
    return name not in _NOT_COMPARED and not is_of_the_clock(name)


def _is_same(before: Event, after: Event, name: str) -> bool:
    return name in before and name in after and before[name] == after[name]


def _shown(event: Event, name: str) -> JsonValue:
    value = event.get(name, NOT_LOGGED)
    return value if isinstance(value, int | float | str | bool) or value is None else str(value)


def _rank(name: str) -> int:
    """Return the position of a metric's computation in a step, judging by its name."""
    plain = name.removeprefix(_EVAL)
    return next((rank for rank, prefix in enumerate(_CAUSES_FIRST) if plain.startswith(prefix)), len(_CAUSES_FIRST))


def _named(difference: Difference) -> tuple[str, ...]:
    return (difference.metric, *difference.others)
