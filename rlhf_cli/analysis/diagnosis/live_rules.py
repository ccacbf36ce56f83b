"""Judge a training while it runs: warn of findings, and end it once a stopping rule has held long enough."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed
from transformers import TrainerCallback, TrainerControl, TrainerState

from rlhf_cli.runs.metrics_file import Event, plain_metrics, read_metrics
from rlhf_cli.runs.run_folder import RunFolder

if TYPE_CHECKING:
    from rlhf_cli.analysis.diagnosis.finding import Finding
    from rlhf_cli.analysis.diagnosis.run_diagnosis import Watch
    from rlhf_cli.analysis.diagnosis.stopping_rules import StoppingRules

_log = logging.getLogger("rlhf")


@dataclass(eq=False)
class WarnOfFindings(TrainerCallback):
    """A callback that warns about findings in the log so far; `kinds` are the enabled ones.

    Findings from an earlier attempt at the run are not repeated. Use it in the main process only.
    """

    folder: RunFolder
    show: Callable[[str], object]
    kinds: Collection[str]
    watch: Watch | None = None
    has_warned: bool = False

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if self.kinds:
            from rlhf_cli.analysis.diagnosis.finding import RunSetup
            from rlhf_cli.analysis.diagnosis.run_diagnosis import Watch

            setup = RunSetup.of(self.folder.read_config(), self.folder.shown)
            self.watch = Watch(setup, self.kinds, state.max_steps, read_metrics(self.folder.metrics))

    def on_log(self, args: Any, state: TrainerState, control: Any, logs: Event | None = None, **_: Any) -> None:
        if self.watch is not None:
            self._warn(state.global_step, self.watch.take(state.global_step, plain_metrics(logs or {})))

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if self.watch is not None:
            self._warn(state.global_step, self.watch.look())

    def _warn(self, step: int, findings: list[Finding]) -> None:
        for finding in findings:
            change = next(iter(finding.changes), None)
            advice = f"; {change.words} {change.reason}" if change else ""
            text = f"step {step}: {finding.what}{advice}"
            _log.warning(text)
            more = "" if self.has_warned else f" (rlhf why {self.folder.shown} has the evidence)"
            self.has_warned = True
            self.show(f"warning: {text}{more}")
        for finding in self.watch.gone if self.watch is not None else ():
            _log.info("step %d: no longer so: %s", step, finding.what)
            self.show(f"step {step}: no longer so: {finding.what}")


@dataclass(eq=False)
class StopByRule(TrainerCallback):
    """A callback that saves and stops training once a rule has held long enough. Use it on every rank.

    Rank 0 evaluates the rules and tells the others at the same log event. `has_stopped` is True if a rule stopped the
    training; `reason`, on rank 0, is the rule with its values.
    """

    folder: RunFolder
    show: Callable[[str], object]
    rules: StoppingRules
    is_main: bool
    has_stopped: bool = False
    reason: str | None = None

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Replay metrics.jsonl if the run is resumed: it has been cut to the checkpoint's step."""
        if self.is_main:
            self.rules.replay(read_metrics(self.folder.metrics))

    def on_log(self, args: Any, state: TrainerState, control: Any, logs: Event | None = None, **_: Any) -> None:
        """Update the rules with the log event; between steps, save and stop if a rule has held long enough."""
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
                _log.info("step %d: %s", state.global_step, reason)
                self.show(f"step {state.global_step}: {reason}")

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Warn about rules whose metric was never logged."""
        if self.is_main:
            self._warn(at_end=True)

    def _warn(self, *, at_end: bool = False) -> None:
        for text in self.rules.never_logged(at_end=at_end):
            _log.warning(text)
            self.show(f"warning: {text}")


def on_any_rank(flag: bool, device: torch.device) -> bool:
    """Return whether the flag is set on any rank; all ranks must call this at the same place."""
    if not distributed.is_initialized():
        return flag
    gathered = torch.tensor(int(flag), device=device)
    distributed.all_reduce(gathered, op=distributed.ReduceOp.MAX)
    return bool(gathered.item())
