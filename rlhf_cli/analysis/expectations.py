"""Compare a run's log with its `expect` section: each expectation is met, missed or open."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from pydantic import ValidationError

from rlhf_cli.config.schema.run_sections import Expectation, read_expectations
from rlhf_cli.errors import RunError
from rlhf_cli.runs.metric_arrays import MetricColumns, Window, WindowKind, number_of, read_columns
from rlhf_cli.runs.run_folder import RunFolder, read_json
from rlhf_cli.runs.run_status import FINISHED, Status, read_status
from rlhf_cli.tables.metrics import logged_name
from rlhf_cli.text.json_values import JsonTree, JsonValue, finite_or_none, section
from rlhf_cli.text.suggest import nearest

State = Literal["met", "missed", "open"]
MET: Final = "met"
MISSED: Final = "missed"
OPEN: Final = "open"

_EVAL = "eval_"
_ROUNDING = 1e-6
"""Relative difference from a bound that is rounding: TRL logs means in float32, in which 0.95 is 0.94999999."""
_KINDS = {kind.value: kind for kind in WindowKind}


@dataclass(frozen=True)
class ExpectationOutcome:
    """The result of one expectation. `metric` is the name in metrics.jsonl, `value` is NaN without a number.

    The state is `open` until the run reaches the step of the expectation; `why` explains it, or a missing number.
    """

    name: str
    expectation: Expectation
    metric: str
    state: State
    value: float
    why: str | None = None

    def as_json(self) -> dict[str, object]:
        """Return everything as JSON values, null for a missing number or bound."""
        return {
            "name": self.name,
            "metric": self.metric,
            "at": self.expectation.at,
            "at_least": finite_or_none(self.expectation.low),
            "at_most": finite_or_none(self.expectation.high),
            "state": self.state,
            "value": finite_or_none(self.value),
            "why": self.why,
        }


@dataclass(frozen=True)
class VerifiedRun:
    """A run and the outcomes of its expectations; empty if it has none. `typed` are the overrides of its commands."""

    folder: RunFolder
    status: Status
    outcomes: tuple[ExpectationOutcome, ...]
    typed: tuple[str, ...] = ()

    @property
    def state(self) -> State | None:
        """Return missed if any outcome is, else open if any is, else met; None without expectations."""
        states = [outcome.state for outcome in self.outcomes]
        return next((state for state in (MISSED, OPEN, MET) if state in states), None)

    def as_json(self) -> dict[str, object]:
        """Return everything as JSON values."""
        return {
            "run": self.folder.shown,
            "run_state": self.status.state,
            "step": self.status.step,
            "max_steps": self.status.max_steps,
            "state": self.state,
            "expectations": [outcome.as_json() for outcome in self.outcomes],
        }


def verify(folder: RunFolder) -> VerifiedRun:
    """Return the outcomes of the expectations of a run. Raise RunError if one of its files cannot be read."""
    config, status = folder.read_config(), read_status(folder)
    frozen: JsonValue = config.get("expect")
    try:
        expected = read_expectations(frozen)
    except ValidationError as error:  # they were edited
        wanted = "; ".join(problem["msg"].removeprefix("Value error, ") for problem in error.errors())
        where = f"expect in {folder.config}"
        raise RunError("expectations cannot be read", where=where, got=str(frozen), expected=wanted) from error
    if not expected:
        return VerifiedRun(folder, status, ())
    columns, rewards = read_columns(folder.metrics), section(config, "rewards")
    outcomes = outcomes_of(expected, columns, rewards, is_finished=status.state == FINISHED)
    return VerifiedRun(folder, status, tuple(outcomes), tuple(_typed(read_json(folder.provenance))))


def _typed(provenance: JsonTree) -> Iterator[str]:
    """Yield the words that changed a run, at its start and at each resume."""
    typed, resumed = (provenance.get(name) for name in ("overrides", "resumed"))
    yield from map(str, typed if isinstance(typed, list) else ())
    for entry in resumed if isinstance(resumed, list) else ():
        for key, change in section(entry if isinstance(entry, dict) else {}, "changes").items():
            yield f"{key}={str(change).rpartition(' -> ')[2]}"


def outcomes_of(
    expected: Mapping[str, Expectation], columns: MetricColumns, rewards: Iterable[str], *, is_finished: bool
) -> list[ExpectationOutcome]:
    """Return the outcome of each expectation from the log; `rewards` are the names of the run's rewards."""
    names, outcomes = list(rewards), []
    for name, one in expected.items():
        metric = logged_name(one.metric, names)
        outcomes.append(ExpectationOutcome(name, one, metric, *_judged(one, metric, columns, is_finished)))
    return outcomes


def _judged(
    one: Expectation, metric: str, columns: MetricColumns, is_finished: bool
) -> tuple[State, float, str | None]:
    """Return the state of an expectation, the number to compare, and why it is open or has no number."""
    is_due = columns.last_step >= one.at if isinstance(one.at, int) else is_finished
    value = _number(one, metric, columns)
    if not is_due and not is_finished:
        return OPEN, value, f"the run is at step {columns.last_step}"
    if not is_due:
        return MISSED, math.nan, f"the run ended at step {columns.last_step}"
    if math.isnan(value):
        close, steps = nearest(metric, columns), columns.series(metric).steps
        why = "it was never logged" + (f"; {close} was" if close else "")
        if len(steps):
            is_late = isinstance(one.at, int) and steps[0] > one.at
            why = f"it was first logged at step {steps[0]}" if is_late else "it was logged as null"
        return MISSED, value, why
    is_bound = any(math.isclose(value, bound, rel_tol=_ROUNDING) for bound in (one.low, one.high))
    return MET if one.low <= value <= one.high or is_bound else MISSED, value, None


def _number(one: Expectation, metric: str, columns: MetricColumns) -> float:
    """Return the number to compare with the bound, read like in `comparison`; see `Expectation`."""
    kind, more_is_better = _KINDS.get(str(one.at), WindowKind.LAST), one.at_least is not None
    up_to = one.at if isinstance(one.at, int) else None
    if metric.startswith(_EVAL) and (kind != WindowKind.LAST or one.last_events):
        # An evaluation is a single number, so do not average it with others.
        return Window(kind, one.last_events or 1).of(columns.series(metric), more_is_better=more_is_better)
    return number_of(columns, metric, Window(kind, one.last_events), more_is_better=more_is_better, up_to=up_to)
