"""Judge a training while it runs: warn of findings, and end it once a stopping rule has held long enough."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import distributed
from transformers import TrainerCallback, TrainerControl, TrainerState

from rlhf_cli.analysis.diagnosis.logged import ENOUGH, Finding, Log, RunSetup
from rlhf_cli.analysis.diagnosis.run_diagnosis import look
from rlhf_cli.config.schema.run_sections import StopRule
from rlhf_cli.runs.metrics_file import Event, plain_metrics, read_metrics
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.tables.metrics import REPRODUCED, STEP, logged_name
from rlhf_cli.text.suggest import nearest

_logger = logging.getLogger("rlhf")

_EVERY = 10
_LONGER = 1.1
"""Check again after ten log events, later after the log grew by a tenth. So the total cost is proportional to the
length of the log, and a report is delayed by a tenth of the log at most.
"""


@dataclass(eq=False)
class WarnOfFindings(TrainerCallback):
    """A callback of the main process that warns once about each finding of the enabled `kinds`, and when it is gone.

    Findings in the log events before a resume count as reported. Notes only appear in `rlhf why`.
    """

    folder: RunFolder
    show: Callable[[str], object]
    kinds: Collection[str]
    has_warned: bool = False

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._setup = RunSetup.of(self.folder.read_config(), self.folder.shown)
        self._log = Log.of(read_metrics(self.folder.metrics), state.max_steps)
        self._reported: dict[tuple[str, str], Finding] = {}
        self._next = ENOUGH
        if self._log.num_events >= ENOUGH:
            self._look()

    def on_log(self, args: Any, state: TrainerState, control: Any, logs: Event | None = None, **_: Any) -> None:
        self._log.take(state.global_step, plain_metrics(logs or {}))
        if self._log.num_events >= self._next:
            self._warn(state.global_step)

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._warn(state.global_step)

    def _look(self) -> tuple[list[Finding], list[Finding]]:
        """Return new findings, worst first, and reported ones that are gone: `rlhf why` would not name them either."""
        self._next = max(self._log.num_events + _EVERY, round(_LONGER * self._log.num_events))
        findings = look(self._log, self._setup, self.kinds).findings
        before, self._reported = self._reported, {(f.kind, f.subject): f for f in findings if f.severity != "note"}
        gone = [finding for key, finding in before.items() if key not in self._reported]
        return [finding for key, finding in self._reported.items() if key not in before], gone

    def _warn(self, step: int) -> None:
        findings, gone = self._look()
        for finding in findings:
            advice = "".join(f"; {change.words} {change.reason}" for change in finding.changes[:1])
            text = f"step {step}: {finding.what}{advice}"
            _logger.warning(text)
            more = "" if self.has_warned else f" (rlhf why {self.folder.typed} has the evidence)"
            self.has_warned = True
            self.show(f"warning: {text}{more}")
        for finding in gone:
            _logger.info("step %d: no longer so: %s", step, finding.what)
            self.show(f"step {step}: no longer so: {finding.what}")


_SHOWN = 5
_WAITED = 5  # warn if a rule's metric is missing after this many log events
_EVAL = "eval_"


@dataclass
class _Counted:
    """A rule, its metric, and the consecutive (step, value) pairs for which it held."""

    name: str
    rule: StopRule
    metric: str
    held: list[tuple[int, float]] = field(default_factory=list)
    was_logged: bool = False
    is_warned: bool = False

    def __str__(self) -> str:
        if self.name == REPRODUCED:
            return "these are the steps that `rlhf reproduce` compares"
        values = ", ".join(f"{value:.4g}" for _, value in self.held[-_SHOWN:])
        first, last = self.held[0][0], self.held[-1][0]
        steps = f"step {last}" if first == last else f"steps {first} to {last}"
        shown = "... " if len(self.held) > _SHOWN else ""
        named = f" {self.name!r}" if self.name and not self.name.isdigit() else ""
        return f"stopped by rule{named}: {self.rule.when}: {shown}{values} at {steps}"


class StoppingRules:
    """Count how long each rule has held. `rules` maps name -> rule, `rewards` are the names of the run's rewards."""

    def __init__(self, rules: Mapping[str, StopRule], rewards: Collection[str]) -> None:
        names = list(rewards)
        self._counted = [_Counted(name, rule, logged_name(rule.metric, names)) for name, rule in rules.items()]
        self._num_events = 0
        self._logged: dict[str, None] = {}
        self.fired: str | None = None
        """The message about the rule that ends the run, or None."""

    def replay(self, events: Iterable[Mapping[str, object]]) -> None:
        """Count the log events before a resume; a rule that held long enough ends the run if it holds once more."""
        for event in events:
            self.take(int(cast(float, event["step"])), event)
        self.fired = None

    def take(self, step: int, event: Mapping[str, object]) -> str | None:
        """Count a log event; return the message of the first rule that has held long enough, else None."""
        if "train_runtime" in event:
            return None
        if not any(name.startswith(_EVAL) for name in event):
            self._num_events += 1
        self._logged.update(dict.fromkeys(event))
        event = {STEP: step, **event}
        for counted in self._counted:
            if counted.metric not in event:
                continue
            counted.was_logged = True
            value, needed = event[counted.metric], counted.rule.log_events
            holds = isinstance(value, int | float) and counted.rule.holds(value)
            counted.held = [*counted.held, (step, float(value))][-needed:] if holds else []  # type: ignore[arg-type]
            if len(counted.held) == needed and self.fired is None:
                self.fired = str(counted)
        return self.fired

    def never_logged(self, *, at_end: bool = False) -> Iterator[str]:
        """Yield a message, once per rule, if its metric is missing although others (an evaluation's) were logged."""
        has_evaluated = any(name.startswith(_EVAL) for name in self._logged)
        for counted in self._counted:
            is_due = has_evaluated if counted.metric.startswith(_EVAL) else self._num_events >= _WAITED
            if counted.was_logged or counted.is_warned or not (is_due or at_end) or not self._logged:
                continue
            counted.is_warned = True
            close = nearest(counted.metric, self._logged)
            guess = f"; {close} is" if close else ""
            yield f"stop rule `{counted.rule.when}` never applies: {counted.metric} is not logged{guess}"


@dataclass(eq=False)
class StopByRule(TrainerCallback):
    """A callback of every rank that saves and stops training once a rule has held long enough.

    Rank 0 evaluates the rules and tells the others at the same log event; it alone knows the `reason`.
    """

    folder: RunFolder
    show: Callable[[str], object]
    rules: StoppingRules
    is_main: bool
    has_stopped: bool = False
    reason: str | None = None

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if self.is_main:
            self.rules.replay(read_metrics(self.folder.metrics))

    def on_log(self, args: Any, state: TrainerState, control: Any, logs: Event | None = None, **_: Any) -> None:
        reason = None
        if self.is_main:
            reason = self.rules.take(state.global_step, plain_metrics(logs or {}))
            self._warn()
        if self.has_stopped or not 0 < state.global_step < state.max_steps:
            return  # the last step ends the training anyway
        if on_any_rank(reason is not None, args.device):
            control.should_save = control.should_training_stop = self.has_stopped = True
            self.reason = reason
            if reason is not None:
                _logger.info("step %d: %s", state.global_step, reason)
                self.show(f"step {state.global_step}: {reason}")

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if self.is_main:
            self._warn(at_end=True)

    def _warn(self, *, at_end: bool = False) -> None:
        for text in self.rules.never_logged(at_end=at_end):
            _logger.warning(text)
            self.show(f"warning: {text}")


def on_any_rank(flag: bool, device: torch.device) -> bool:
    """Return whether the flag is set on any rank; all ranks must call this at the same place."""
    if not distributed.is_initialized():
        return flag
    gathered = torch.tensor(int(flag), device=device)
    distributed.all_reduce(gathered, op=distributed.ReduceOp.MAX)
    return bool(gathered.item())
