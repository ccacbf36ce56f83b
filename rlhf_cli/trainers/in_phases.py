"""Say what a trainer is doing, so that a run that fails or hangs can say during what.

Nothing here changes what is done. While it loads and saves a trainer is not watched: the time that takes is the disk's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from peft import PeftModel
from torch import Tensor
from torch.utils.data import DataLoader

from rlhf_cli.runs.pulse import EVALUATION, GENERATION, LOSS, REWARDS, ROLLOUT, SAVING
from rlhf_cli.trainers.additions import BuiltWhole

if TYPE_CHECKING:
    from rlhf_cli.trainers.trl_protocol import EvaluationOutput


class InPhases(BuiltWhole):
    """Mixed into any TRL trainer, it tells `additions.pulse` what is being done."""

    def _during(self, phase: str, *, is_watched: bool = True) -> AbstractContextManager[None]:
        pulse = self.additions.pulse
        return nullcontext() if pulse is None else pulse.during(phase, is_watched=is_watched)

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any) -> Tensor:
        """Say that a micro-batch's loss and gradient are computed."""
        with self._during(LOSS):
            return super().training_step(model, inputs, num_items_in_batch)

    def evaluation_loop(
        self,
        dataloader: DataLoader[Any],
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvaluationOutput:
        """Say that rows are evaluated."""
        with self._during(EVALUATION):
            return super().evaluation_loop(
                dataloader, description, prediction_loss_only, ignore_keys, metric_key_prefix
            )

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Say that a model is written, which takes the time that the disk takes."""
        with self._during(SAVING, is_watched=False):
            super().save_model(output_dir, _internal_call)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        with self._during(SAVING, is_watched=False):
            super()._save_checkpoint(model, trial)


class InRolloutPhases(InPhases):
    """The same for a trainer that generates. While a model generates, every forward pass of it is a sign of life."""

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        with self._during(ROLLOUT):
            return super()._generate_and_score_completions(inputs)

    def _generate_single_turn(self, *args: Any, **named: Any) -> Any:
        with self._during(GENERATION), self._beating():
            return super()._generate_single_turn(*args, **named)

    def _calculate_rewards(
        self,
        inputs: list[dict[str, Any]],
        prompts: list[Any],
        completions: list[Any],
        completion_ids_list: list[list[int]],
    ) -> Tensor:
        with self._during(REWARDS):
            return super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)

    @contextlib.contextmanager
    def _beating(self) -> Iterator[None]:
        pulse = self.additions.pulse
        if pulse is None:
            yield
            return
        # An adapter's own forward is not called when it generates: its model's is.
        model = self.model.get_base_model() if isinstance(self.model, PeftModel) else self.model
        hook = model.register_forward_pre_hook(lambda *_: pulse.beat())
        try:
            yield
        finally:
            hook.remove()
