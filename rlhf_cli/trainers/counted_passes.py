"""Count the token slots of TRL's own passes (token_slots.py); mixed in directly above TRL's trainer.

Passes of our own that bypass TRL's count themselves.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from rlhf_cli.trainers.token_slots import count
from rlhf_cli.trainers.trl_protocol import TrlTrainer

_IDS, _PROMPT = "input_ids", "prompt"
"""Prompt ids do not go through a model separately: the ids of the answers include them."""


class CountedRows(TrlTrainer):
    """For a TRL trainer that learns from rows: the model computes all token slots of its batches."""

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **named: Any) -> Any:
        """Return TRL's loss after counting the batch."""
        for name in [name for name in inputs if name.endswith(_IDS) and not name.startswith(_PROMPT)]:
            ids, mask = inputs[name], inputs.get(f"{name.removesuffix(_IDS)}attention_mask")
            if isinstance(ids, Tensor):
                count(ids.numel(), ids.numel() if mask is None else mask.sum())
        return super().compute_loss(model, inputs, *args, **named)


class CountedLogps(TrlTrainer):
    """For a TRL trainer that generates: count the passes that compute log-probabilities."""

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
