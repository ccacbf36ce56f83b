"""Verify a run: compare its log with its `expect` section, and the run with itself run again.

An expectation is met, missed or open. Of the two runs: the first number that differs, the weights, the likely causes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, cast

from pydantic import ValidationError

from rlhf_cli.analysis.comparison.logged_run import flat
from rlhf_cli.config.schema.run_sections import Expectation, read_expectations
from rlhf_cli.errors import RunError
from rlhf_cli.runs.metric_arrays import MetricColumns, Window, WindowKind, number_of, read_columns
from rlhf_cli.runs.metrics_file import read_metrics
from rlhf_cli.runs.provenance import weights_hash
from rlhf_cli.runs.run_folder import RunFolder, checkpoint_folder, read_json
from rlhf_cli.runs.run_status import FINISHED, Status, read_status
from rlhf_cli.tables.metrics import is_of_the_clock, logged_name
from rlhf_cli.tables.resume_keys import row_of
from rlhf_cli.text.json_values import JsonValue, finite_or_none, section
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
        """Return everything as JSON values, null for a missing number or bound."""
        expectations = [
            {
                "name": one.name,
                "metric": one.metric,
                "at": one.expectation.at,
                "at_least": finite_or_none(one.expectation.low),
                "at_most": finite_or_none(one.expectation.high),
                "state": one.state,
                "value": finite_or_none(one.value),
                "why": one.why,
            }
            for one in self.outcomes
        ]
        return {
            "run": self.folder.shown,
            "run_state": self.status.state,
            "step": self.status.step,
            "max_steps": self.status.max_steps,
            "state": self.state,
            "config_edited": self.folder.is_config_edited(),
            "expectations": expectations,
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
    # The words that changed the run, at its start and at each resume.
    provenance = read_json(folder.provenance)
    started, resumed = provenance.get("overrides"), provenance.get("resumed")
    typed = [str(word) for word in started] if isinstance(started, list) else []
    for entry in resumed if isinstance(resumed, list) else ():
        changes = section(entry if isinstance(entry, dict) else {}, "changes")
        typed += [f"{key}={str(change).rpartition(' -> ')[2]}" for key, change in changes.items()]
    return VerifiedRun(folder, status, tuple(outcomes), tuple(typed))


def outcomes_of(
    expected: Mapping[str, Expectation], columns: MetricColumns, rewards: Iterable[str], *, is_finished: bool
) -> list[ExpectationOutcome]:
    """Return the outcome of each expectation from the log; `rewards` are the names of the run's rewards."""
    names, outcomes = list(rewards), []
    for name, one in expected.items():
        metric = logged_name(one.metric, names)
        outcomes.append(ExpectationOutcome(name, one, metric, *_judge(one, metric, columns, is_finished)))
    return outcomes


def _judge(one: Expectation, metric: str, columns: MetricColumns, is_finished: bool) -> tuple[State, float, str | None]:
    """Return the state, the number as a comparison reads it (see `Expectation`), and why it is open or lacks one."""
    is_due = columns.last_step >= one.at if isinstance(one.at, int) else is_finished
    kind, more_is_better = _KINDS.get(str(one.at), WindowKind.LAST), one.at_least is not None
    if metric.startswith(_EVAL) and (kind != WindowKind.LAST or one.last_events):
        # An evaluation is a single number, so do not average it with others.
        value = Window(kind, one.last_events or 1).of(columns.series(metric), more_is_better=more_is_better)
    else:
        window, up_to = Window(kind, one.last_events), one.at if isinstance(one.at, int) else None
        value = number_of(columns, metric, window, more_is_better=more_is_better, up_to=up_to)
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


NOT_LOGGED = "not logged"
_ORDER = "epoch learning_rate num_ completions rewards/ reward sampling kl entropy ppo clip_ratio loss critic grad_norm"
_FACTS = (
    *("sha256.", "starting_model.", "versions.", "rlhf_code", "torch_threads", "device", "attention", "world_size"),
    *("num_", "mixed_precision", "distributed_type", "environment.", "host.processor", "resumed"),
)
_UNRELATED = ("sha256.config", "sha256.config_to_be", "starting_model.path")


@dataclass(frozen=True)
class Pair:
    """A metric, a part of the weights or a recorded fact, and its value in both runs."""

    name: str
    before: object
    after: object


@dataclass(frozen=True)
class Reproduction:
    """Two runs compared up to step `steps`. `also` are the other metrics that differ at step `first_step`."""

    equal: bool
    run: str
    again: str
    steps: int
    numbers: int
    first_step: int | None
    first_difference: Pair | None
    also: list[str]
    weights: list[Pair]
    causes: list[Pair]


def compare_again(run: RunFolder, again: RunFolder, *, up_to: int | None = None) -> Reproduction:
    """Compare two runs up to a step (None: to their ends), to the last bit. Raise RunError for an unreadable file."""
    logs = [_numbers(one, up_to) for one in (run, again)]
    places = sorted(logs[0] | logs[1], key=lambda place: place[:-1])  # stable: metrics of one rank stay as logged
    pairs = [(place[0], Pair(place[-1], *(log.get(place, NOT_LOGGED) for log in logs))) for place in places]
    differing = [(step, pair) for step, pair in pairs if pair.before != pair.after]
    first_step, first = differing[0] if differing else (None, None)
    also = [pair.name for step, pair in differing[1:] if step == first_step]
    weights: list[Pair] = []
    for part in ("model", "critic") if up_to is None else (f"checkpoint-{up_to}",):
        folders = (checkpoint_folder(one.checkpoints, up_to) if up_to else one.path / part for one in (run, again))
        pair = Pair(part, *(weights_hash(folder) if folder.is_dir() else None for folder in folders))
        weights += [pair] if None not in (pair.before, pair.after) else []  # where both runs kept it
    causes: list[Pair] = []
    old, new = (dict(flat(one.read_config())) for one in (run, again))
    for key in old | new:
        row = row_of(key)
        is_harmless = row.effect == "taken" and not row.only_if and "args.logging_" not in key
        if old.get(key) != new.get(key) and not is_harmless:
            causes.append(Pair(key, old.get(key), new.get(key)))
    old, new = (dict(flat(read_json(one.provenance))) for one in (run, again))
    for name, value in old.items():  # recorded facts that may change a number
        if name.startswith(_FACTS) and name not in _UNRELATED and value not in (None, new.get(name)):
            causes.append(Pair(name, value, new.get(name)))
    is_equal = first is None and all(part.before == part.after for part in weights)
    steps = max((step for step, _ in pairs), default=0)
    return Reproduction(is_equal, run.shown, again.shown, steps, len(logs[0]), first_step, first, also, weights, causes)


def _numbers(run: RunFolder, up_to: int | None) -> dict[tuple[int, bool, int, int, str], object]:
    """Return the logged values by (step, of an evaluation, index of the event, order of the metric, metric).

    Metrics of the clock and the last line, which summarises one call, are left out.
    """
    counted, found = Counter[tuple[int, bool]](), {}
    for event in read_metrics(run.metrics):
        kind = int(cast(float, event["step"])), any(name.startswith("eval_") for name in event)
        if "train_runtime" in event or (up_to is not None and kind[0] > up_to):
            continue
        counted[kind] += 1
        for name in event:
            if name not in ("step", "time_s") and not is_of_the_clock(name):
                order = [name.removeprefix("eval_").startswith(prefix) for prefix in _ORDER.split()] + [True]
                found[*kind, counted[kind], order.index(True), name] = event[name]
    return found
