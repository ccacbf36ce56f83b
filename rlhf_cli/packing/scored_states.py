"""Hands a language model's head only the states from which a scored token is predicted.

TRL's head, off Triton devices, projects every place of the batch, prompts and padding too, and throws most of it away.
A hook on the backbone leaves the head nothing else to project, on any device, and TRL's own forward does the rest:
temperature, soft caps, sharded weights.
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
    """Open a context in which the backbone of `model` returns (1, S, hidden) states, those of `places` (S,).

    model: with a head on it, not wrapped. places: into its flattened (B * L) input.
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
