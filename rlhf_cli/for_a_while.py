"""Give an object other attributes for a while, and put back exactly what was there."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def with_values(owner: object, **values: object) -> Iterator[None]:
    """Open a context in which an instance or a module has `values` as its own attributes.

    Afterwards it has its own again. Where it had none, what its class says counts again.
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
