"""Save the step before an evaluation that is broken off, because the process was asked to stop meanwhile."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader

from rlhf_cli.trainers.trl_protocol import TrlTrainer

if TYPE_CHECKING:
    from rlhf_cli.trainers.trl_protocol import EvaluationOutput


class EvaluationBrokenOff(Exception):
    """A callback raises this between two batches of an evaluation, on all ranks at the same one."""


class BreaksOffEvaluations(TrlTrainer):
    """Mixed into any TRL trainer, it saves and stops where a callback raises `EvaluationBrokenOff`."""

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
        """Evaluate; if that is broken off, drop what TRL has gathered for its next log."""
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
            self.model.train()  # TRL logs by the mode that the model is in
            raise
