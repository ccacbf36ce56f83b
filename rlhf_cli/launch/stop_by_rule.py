"""End a run once a rule of `stop` has held long enough."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from rich.text import Text
from transformers import TrainerCallback, TrainerControl, TrainerState

from rlhf_cli.analysis.diagnosis.stopping_rules import StoppingRules
from rlhf_cli.launch.callbacks import TrainingBar, on_any_rank, plain_metrics
from rlhf_cli.runs.metrics_file import read_metrics
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.trainers.trl_protocol import TrlBatch

_log = logging.getLogger("rlhf")


@dataclass(eq=False)
class StopByRule(TrainerCallback):
    """A callback that saves and stops training once a rule has held long enough. Use it on every rank.

    Rank 0 evaluates the rules and tells the others at the same log event. `has_stopped` is True if a rule stopped the
    training; `reason`, on rank 0, is the rule with its values.
    """

    folder: RunFolder
    bar: TrainingBar
    rules: StoppingRules
    is_main: bool
    has_stopped: bool = False
    reason: str | None = None

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Replay metrics.jsonl if the run is resumed: it has been cut to the checkpoint's step."""
        if self.is_main:
            self.rules.replay(read_metrics(self.folder.metrics))

    def on_log(self, args: Any, state: TrainerState, control: Any, logs: TrlBatch | None = None, **_: Any) -> None:
        """Update the rules with the log event; between steps, save and stop if a rule has held long enough."""
        said = None
        if self.is_main:
            said = self.rules.take(state.global_step, plain_metrics(logs))
            self._warn()
        if self.has_stopped or not 0 < state.global_step < state.max_steps:
            return  # the last step ends the training anyway
        if on_any_rank(said is not None, args.device):
            control.should_save = control.should_training_stop = self.has_stopped = True
            self.reason = said
            if said is not None:
                _log.info("step %d: %s", state.global_step, said)
                self.bar.print(Text(f"step {state.global_step}: {said}"))

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Warn about rules whose metric was never logged."""
        if self.is_main:
            self._warn(at_end=True)

    def _warn(self, *, at_end: bool = False) -> None:
        for text in self.rules.never_logged(at_end=at_end):
            _log.warning(text)
            self.bar.print(Text(f"warning: {text}"))
