"""Give a language model's head only the states that predict a scored token.

Without Triton, TRL's head projects every position of the batch, including prompts and padding, and discards most of the
result. A hook on the backbone selects the states on any device, and TRL's own forward does the rest: temperature, soft
caps, sharded weights.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput


@contextlib.contextmanager
def only_states(model: PreTrainedModel, places: Tensor) -> Iterator[None]:
    """Make the backbone of `model` return (1, S, hidden) states in this context, those of `places` (S,).

    model: with a head, not wrapped. places: indices into its flattened (B * L) input.
    """

    def pick(_module: torch.nn.Module, _inputs: tuple[object, ...], output: BaseModelOutput) -> BaseModelOutput:
        states = output.last_hidden_state
        assert states is not None
        output.last_hidden_state = states.reshape(-1, states.shape[-1]).index_select(0, places).unsqueeze(0)
        return output

    hook = model.base_model.register_forward_hook(pick)
    try:
        yield
    finally:
        hook.remove()
