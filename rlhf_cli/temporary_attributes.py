"""Set attributes of an object temporarily, then restore them exactly."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


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
