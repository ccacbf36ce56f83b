"""Save the current step if a stop request interrupts an evaluation."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader

from rlhf_cli.trainers.trl_protocol import TrlTrainer

if TYPE_CHECKING:
    from rlhf_cli.trainers.trl_protocol import EvaluationOutput


class EvaluationBrokenOff(Exception):
    """Raised by a callback between two batches of an evaluation, on all ranks at the same batch."""


class BreaksOffEvaluations(TrlTrainer):
    """For any TRL trainer: save and stop when a callback raises `EvaluationBrokenOff`."""

    def _maybe_log_save_evaluate(self, *args: Any, **named: Any) -> None:
        try:
            super()._maybe_log_save_evaluate(*args, **named)
        except EvaluationBrokenOff:
            self.control.should_evaluate = False
            self.control.should_save = self.control.should_training_stop = True
            super()._maybe_log_save_evaluate(*args, **named)  # the step is logged already: this saves

    def evaluation_loop(
        self,
        dataloader: DataLoader[Any],
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvaluationOutput:
        """Evaluate; if it is interrupted, drop what TRL has gathered for its next log."""
        logs = copy.deepcopy(getattr(self, "_logs", None))
        try:
            return super().evaluation_loop(
                dataloader, description, prediction_loss_only, ignore_keys, metric_key_prefix
            )
        except EvaluationBrokenOff:
            if logs is not None:
                self._logs = logs
            if hasattr(self, "_metrics"):
                self._metrics["eval"].clear()
            self.model.train()  # TRL logs by the mode of the model
            raise
