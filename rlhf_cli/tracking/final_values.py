"""Summarise a run for a table of runs: each reward's final value, its best with the step, evaluation intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rlhf_cli.runs.metrics_file import TOTAL, Event, reward_names, series, start_and_end
from rlhf_cli.tracking.metric_names import at_the_end, shown_name

_OF_PAIRS = ("loss", "accuracy", "rewards/accuracies", "rewards/margins", "mean_token_accuracy")
_WORSE_IF_MORE = ("loss",)
_EVALUATION = "eval_"
_BOUNDS = ("/low", "/high")


def final_values(events: Sequence[Event]) -> dict[str, float]:
    """Return `final/METRIC`, `best/METRIC` and `best_step/METRIC` of the metrics that judge a run.

    These are the total and every component if there are rewards, else loss and accuracy. On training rows, `final` is
    the mean of the last tenth of the log events with a number, and `best` is the best mean over a window of that width,
    so one lucky batch does not count. For an evaluation they are the last and the best value, each with `/low` and
    `/high` if the 95 % interval is known.
    """
    names = reward_names(events)
    judged = [TOTAL, *(f"rewards/{name}/mean" for name in names)] if names else list(_OF_PAIRS)
    values: dict[str, float] = {}
    for metric in judged:
        values |= _of_training(events, metric)
    for metric in _evaluated(events):
        values |= _of_evaluations(events, metric)
    for event in events:
        values |= at_the_end(event)
    return values


def _of_training(events: Sequence[Event], metric: str) -> dict[str, float]:
    steps, values = series(events, metric)
    span = start_and_end(values)
    if span is None:
        return {}
    width = max(1, len(values) // 10)
    means = [sum(values[end - width : end]) / width for end in range(width, len(values) + 1)]
    place = _best(means, metric)
    return _named(metric, span[1], means[place], steps[place + width - 1])


def _of_evaluations(events: Sequence[Event], metric: str) -> dict[str, float]:
    steps, values = series(events, metric)
    place = _best(values, metric)
    summed_up = _named(metric, values[-1], values[place], steps[place])
    for bound in _BOUNDS:
        of_step: Mapping[int, float] = dict(zip(*series(events, metric + bound), strict=True))
        for which, step in (("final", steps[-1]), ("best", steps[place])):
            if step in of_step:
                summed_up[f"{which}/{shown_name(metric)}{bound}"] = of_step[step]
    return summed_up


def _named(metric: str, final: float, best: float, best_step: int) -> dict[str, float]:
    shown = shown_name(metric)
    return {f"final/{shown}": final, f"best/{shown}": best, f"best_step/{shown}": best_step}


def _best(values: Sequence[float], metric: str) -> int:
    """Return the index of the best value, the first one on ties."""
    sign = -1 if metric.removeprefix(_EVALUATION) in _WORSE_IF_MORE else 1
    return max(range(len(values)), key=lambda place: sign * values[place])


def _evaluated(events: Sequence[Event]) -> list[str]:
    """Return the metrics that judge evaluations: totals and rewards of answers, else loss and accuracy."""
    logged = dict.fromkeys(name for event in events for name in event if name.startswith(_EVALUATION))
    ways = ("eval_greedy/", "eval_sampled/")
    of_answers = [name for name in logged if name.startswith(ways) and not name.endswith(_BOUNDS)]
    kept = [name for name in of_answers if name.endswith("/total") or "/rewards/" in name]
    judged = kept or [name for name in logged if name.removeprefix(_EVALUATION) in _OF_PAIRS]
    return [name for name in judged if series(events, name)[1]]
