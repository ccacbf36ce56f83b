"""Switch dropout off: for good, or for a pass.

PPO compares the policy in training with that of the rollout, token by token. With dropout in either, the ratio is that
of two thinned models drawn at random: it is not 1 where nothing has moved, and is clipped. So TRL's PPOTrainer (until
1.12), verl and others train without.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torch import nn


def switch_off_dropout(model: nn.Module) -> None:
    """Set every share of `model` that is dropped to 0."""
    for module, name in list(_shares(model)):
        setattr(module, name, 0.0)


def drops(model: nn.Module) -> bool:
    """Return whether a pass in training drops anything at random."""
    return any(getattr(module, name) > 0 for module, name in _shares(model))


def _shares(model: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    """Yield where shares that are dropped are kept: in dropout layers, and as plain numbers of modules
    (`attention_dropout` of Llama and its kin), which TRL's `disable_dropout` passes over.
    """
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            yield module, "p"
        for name, value in vars(module).items():
            if "dropout" in name and isinstance(value, float):
                yield module, name


@contextlib.contextmanager
def in_evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Open a context in which no module of `model` is in training; afterwards each is as it was."""
    in_training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in in_training:
            module.training = True
