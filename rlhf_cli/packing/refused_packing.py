"""Says that rows cannot be packed where that is asked for: the same before a run and in it."""

from __future__ import annotations

from rlhf_cli.errors import ModelError
from rlhf_cli.tables.pass_modes import Passes


def refused_packing(found: Passes, *, where: str) -> ModelError:
    """Return the error for `trainer.passes=packed`, given the way that rows can go; `where` the key was set."""
    return ModelError(
        "rows cannot be packed",
        where=where,
        got=f"packed, and {found.why}",
        expected="auto: the fastest way that it can go",
        hint="trainer.passes=auto",
    )
