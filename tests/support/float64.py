"""A model that computes in float64 throughout, so that a claim of algebra is tested without rounding."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from trl.kernels import chunked_logprob


def in_float64(model: Any) -> Any:
    """Turn a model's weights into float64, in place, and return it.

    transformers' RMSNorm computes in float32 for every input, so torch's RMSNorm replaces it.
    """
    for module in list(model.modules()):
        for name, norm in list(module.named_children()):
            if type(norm).__name__.endswith("RMSNorm") and not isinstance(norm, torch.nn.RMSNorm):
                mine = torch.nn.RMSNorm(norm.weight.shape, eps=norm.variance_epsilon)
                mine.weight = norm.weight
                setattr(module, name, mine)
    return model.double()


def all_in_float64(trainer: Any) -> None:
    """Turn a trainer's policy, reference and critic into float64."""
    critic = getattr(trainer, "critic", None)
    for model in (trainer.model, trainer.ref_model, None if critic is None else critic.model):
        if model is not None:
            in_float64(model)


class _Float64Torch:
    """torch for a module that names float32: it gets float64."""

    float32 = torch.float64

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


@contextmanager
def no_float32() -> Iterator[None]:
    """A context in which `tensor.float()` gives float64: losses, heads and rotary angles ask for float32 by it.

    TRL's head in chunks names float32; it gets float64, too.
    """
    as_double = patch.object(torch.Tensor, "float", torch.Tensor.double)
    with as_double, patch.object(chunked_logprob, "torch", _Float64Torch()):
        yield
