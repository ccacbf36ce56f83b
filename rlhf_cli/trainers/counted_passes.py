"""Count the token slots of TRL's own passes (token_slots.py): mixed in directly above TRL's trainer.

A pass of ours that does not go through TRL's counts itself.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from rlhf_cli.trainers.token_slots import count
from rlhf_cli.trainers.trl_protocol import TrlTrainer

_IDS, _PROMPT = "input_ids", "prompt"
"""A batch's prompts alone go through no model: where they are, they are also in front of the answers."""


class CountedRows(TrlTrainer):
    """Mixed into a TRL trainer that learns from rows: what its batches hold is what its model computes."""

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **named: Any) -> Any:
        """Return TRL's loss of a batch that was counted."""
        for name in [name for name in inputs if name.endswith(_IDS) and not name.startswith(_PROMPT)]:
            ids, mask = inputs[name], inputs.get(f"{name.removesuffix(_IDS)}attention_mask")
            if isinstance(ids, Tensor):
                count(ids.numel(), ids.numel() if mask is None else mask.sum())
        return super().compute_loss(model, inputs, *args, **named)


class CountedLogps(TrlTrainer):
    """Mixed into a TRL trainer that generates: its passes are those that give log-probabilities."""

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: Tensor,
        attention_mask: Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        compute_entropy: bool = False,
        **others: Any,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        count(input_ids.numel(), attention_mask.sum())
        return super()._get_per_token_logps_and_entropies(
            model, input_ids, attention_mask, logits_to_keep, batch_size, compute_entropy, **others
        )
