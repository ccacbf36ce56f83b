"""Create the error for a packing request that a model does not support, before or during a run."""

from __future__ import annotations

from rlhf_cli.errors import ModelError
from rlhf_cli.tables.pass_modes import Passes


def refused_packing(found: Passes, *, where: str) -> ModelError:
    """Return the error for `trainer.passes=packed`, given the supported passes and `where` the key was set."""
    return ModelError(
        "rows cannot be packed",
        where=where,
        got=f"packed, and {found.why}",
        expected="auto: the fastest way that it can go",
        hint="trainer.passes=auto",
    )
