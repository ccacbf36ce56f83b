"""Show the findings of `rlhf why` during training, each once, above the bar and in log.txt."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Any

from rich.text import Text
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from rlhf_cli.diagnosis.finding import Finding
from rlhf_cli.diagnosis.run_setup import RunSetup
from rlhf_cli.diagnosis.watch import Watch
from rlhf_cli.runs.metrics_file import read_metrics
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.screen.training_bar import TrainingBar

_log = logging.getLogger("rlhf")


class SayFindings(TrainerCallback):
    """A callback that warns about findings in the log so far; `kinds` are the enabled ones.

    Findings from an earlier attempt at the run are not repeated. Use it in the main process only.
    """

    def __init__(self, folder: RunFolder, bar: TrainingBar, kinds: Collection[str]) -> None:
        self._folder = folder
        self._bar = bar
        self._kinds = kinds
        self._watch: Watch | None = None
        self._has_said = False

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Load metrics.jsonl if the run is resumed."""
        if self._kinds:
            setup = RunSetup.of(self._folder.read_config())
            self._watch = Watch(setup, self._kinds, state.max_steps, read_metrics(self._folder.metrics))

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """Add the log event, and show new findings."""
        if self._watch is not None:
            plain = {name: value.item() if hasattr(value, "item") else value for name, value in (logs or {}).items()}
            self._say(state.global_step, self._watch.take(state.global_step, plain))

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Check once more after the last log event."""
        if self._watch is not None:
            self._say(state.global_step, self._watch.look())

    def _say(self, step: int, findings: list[Finding]) -> None:
        for finding in findings:
            change = next(iter(finding.changes), None)
            advice = f"; {change.words} {change.reason}" if change else ""
            text = f"step {step}: {finding.what}{advice}"
            _log.warning(text)
            more = "" if self._has_said else f" (rlhf why {self._folder.shown} has the evidence)"
            self._has_said = True
            self._bar.print(Text(f"warning: {text}{more}"))
