"""Switch dropout off, permanently or for one pass.

PPO compares the policy in training with the policy of the rollout, token by token. With dropout, both are randomly
thinned models: the ratio is not 1 even without an update, and gets clipped. So TRL's PPOTrainer (until 1.12), verl and
others train without dropout.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torch import nn


def switch_off_dropout(model: nn.Module) -> None:
    """Set every dropout probability of `model` to 0."""
    for module, name in list(_shares(model)):
        setattr(module, name, 0.0)


def drops(model: nn.Module) -> bool:
    """Return whether a training pass drops anything at random."""
    return any(getattr(module, name) > 0 for module, name in _shares(model))


def _shares(model: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    """Yield the attributes that hold dropout probabilities, as (module, name).

    They are in dropout layers, and in plain numbers of modules (`attention_dropout` of Llama and similar models), which
    TRL's `disable_dropout` ignores.
    """
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            yield module, "p"
        for name, value in vars(module).items():
            if "dropout" in name and isinstance(value, float):
                yield module, name


@contextlib.contextmanager
def in_evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Put all modules of `model` into evaluation mode in this context; restore each mode afterwards."""
    in_training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in in_training:
            module.training = True
