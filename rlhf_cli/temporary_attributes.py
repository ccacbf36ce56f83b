"""Set attributes of an object for a while, or keep them while others are loaded."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.optim import Optimizer

_OPTIONS = ("weight_decay", "betas", "eps")
"""The optimizer options that come from arguments; some optimizers also keep counters in their groups."""


@contextlib.contextmanager
def temporary_attributes(owner: object, **values: object) -> Iterator[None]:
    """Open a context in which an instance or a module has `values` as its own attributes.

    On exit its own attributes are restored. Those it did not have are removed, so that its class's apply again.
    """
    own = vars(owner)
    before = {name: own[name] for name in values if name in own}
    own.update(values)
    try:
        yield
    finally:
        for name in values:
            own.pop(name, None)
        own.update(before)


@contextlib.contextmanager
def keeping_options(optimizer: Optimizer) -> Iterator[None]:
    """Keep the options that come from arguments while a state is loaded in this context: what is typed counts."""
    typed = [{name: group[name] for name in _OPTIONS if name in group} for group in optimizer.param_groups]
    yield
    for group, options in zip(optimizer.param_groups, typed, strict=True):
        group.update(options)
