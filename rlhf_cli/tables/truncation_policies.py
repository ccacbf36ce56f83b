"""List the truncation policies.

The valid values and the rules about them derive from this table. A new policy needs a row here, its effect in
rewards/stack/truncation.py and a file in conf/truncation/.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TruncationRow:
    """A policy. `reads` are the keys of the section `truncation` that it uses.

    `modes` are the values of `truncation.mode`, the first is the default. `mode_if_dense` is the default if every
    reward is dense, None if it is the same. `needs_critic`: only a trainer with a critic supports it. `needs_limit`: it
    requires a maximal completion length.
    """

    name: str
    reads: tuple[str, ...] = ()
    modes: tuple[str, ...] = ()
    mode_if_dense: str | None = None
    needs_critic: bool = False
    needs_limit: bool = False


_ROWS = (
    TruncationRow("none"),
    TruncationRow("eos_penalty", reads=("penalty", "mode"), modes=("subtract", "replace")),
    TruncationRow("bootstrap", reads=("mode",), modes=("replace", "add"), mode_if_dense="add", needs_critic=True),
    TruncationRow("exclude"),
    TruncationRow("soft_overlong", reads=("penalty", "cache"), needs_limit=True),
)


TRUNCATION_POLICIES: dict[str, TruncationRow] = {row.name: row for row in _ROWS}
"""Name -> row, in the order of listings."""
