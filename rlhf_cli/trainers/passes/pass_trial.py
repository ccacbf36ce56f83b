"""Compare packed with padded rows before training, on three rows once per run and model."""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch
from accelerate import Accelerator
from peft import PeftModel
from torch import Tensor, nn
from transformers import PreTrainedModel

from rlhf_cli.errors import in_a_line
from rlhf_cli.packing.kernel_choice import distrust, heads_of_model, why_a_row_each
from rlhf_cli.trainers.dropout import in_evaluation_mode
from rlhf_cli.trainers.token_slots import uncounted

_log = logging.getLogger("rlhf")
_ROWS = 3
_TOLERANCE, _TOLERANCE_IN_HALF = 1e-3, 0.05
"""Allowed mean difference between packed and padded numbers. A model that does not pass arguments on to its attention
differs by far more; single tokens differ by a tenth in bfloat16.
"""
_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""The dtype of attention under accelerate's mixed precision."""


def tried_rows(mask: Tensor, num_completion: int) -> Tensor:
    """Return (3,), the rows of (B, P + C) to try: the first that have a completion, repeated if there are fewer.

    A single row would prove nothing: packed alone, it has no neighbour that it could see.
    """
    is_empty = ~mask[:, -num_completion:].bool().any(dim=1)
    order = is_empty.int().argsort(stable=True)
    return order[torch.arange(_ROWS, device=mask.device) % len(order)]


def why_attention_a_row_each(model: PreTrainedModel | PeftModel, accelerator: Accelerator) -> str | None:
    """Return why a model's packed rows cannot attend in one kernel call; None if they can.

    This reads the configuration; each layer's actual input is checked again.
    """
    dtype = _AUTOCAST.get(accelerator.mixed_precision, model.dtype)
    return why_a_row_each(heads_of_model(model, accelerator.device, dtype))


class PassTrial:
    """Try one model of a run. `what` names the compared numbers, for example `its log-probabilities`."""

    def __init__(self, model: nn.Module, accelerator: Accelerator, what: str) -> None:
        self._model, self._accelerator, self._what = model, accelerator, what

    def why_wrong(self, padded: Callable[[], Tensor], packed: Callable[[], Tensor]) -> str | None:
        """Return a description of what is wrong with packed rows, or None; it is the same on every rank.

        Both functions return the numbers of the same tokens. If they differ, or `packed` raises, with one kernel for
        all rows, switch to one kernel call per row and try once more.
        """
        with in_evaluation_mode(self._model), torch.no_grad(), uncounted():  # a run that resumes tries again
            expected = padded()
            wrong, is_at_once = self._held_against(expected, packed)
            if wrong is not None and is_at_once:
                distrust(f"packed with torch's varlen_attn, {wrong}")
                _log.warning("packed rows attend a row each: with torch's varlen_attn %s (docs/passes.md)", wrong)
                wrong, _ = self._held_against(expected, packed)
        return wrong

    def _held_against(self, expected: Tensor, packed: Callable[[], Tensor]) -> tuple[str | None, bool]:
        """Return the problem, and whether rows attend in one kernel call on any rank.

        All ranks call the model equally often.
        """
        difference, raised = torch.tensor(torch.inf, device=expected.device), "a pass raised on another rank"
        model = self._accelerator.unwrap_model(self._model)
        is_at_once = why_attention_a_row_each(model, self._accelerator) is None
        try:
            difference = (expected - packed()).abs().sum() / max(expected.numel(), 1)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, TypeError, ValueError) as error:
            raised = f"a pass raised {in_a_line(error)}"
        said = torch.stack([difference.float(), torch.full_like(difference, float(is_at_once), dtype=torch.float32)])
        farthest, any_at_once = self._accelerator.gather(said.unsqueeze(0)).amax(dim=0).tolist()
        is_half = self._accelerator.mixed_precision != "no" or model.dtype.itemsize < 4
        if farthest <= (_TOLERANCE_IN_HALF if is_half else _TOLERANCE):
            return None, bool(any_at_once)
        off = f"{self._what} were {farthest:.2g} off"
        return raised if farthest == torch.inf else off, bool(any_at_once)
