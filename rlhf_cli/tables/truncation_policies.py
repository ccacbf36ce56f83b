"""List the truncation policies, one row each: what a completion may be worth that the length limit cut.

The words that a configuration accepts, the rules about them and the line in the panel before a run derive from here.
A new policy is a row here, a function of the same name in stack/truncation.py and a file in conf/truncation/.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TruncationRow:
    """Describe one policy. `reads` are the keys of the section `truncation` that mean something to it.

    `modes` are what `truncation.mode` may be, the first one the default; `mode_if_dense` is the default where every
    reward is dense, None where that makes no difference. `needs_critic`: only a trainer with a critic can honour it.
    `needs_limit`: it means nothing where completions have no maximal length.
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
"""Name -> row, in the order in which they are listed."""
