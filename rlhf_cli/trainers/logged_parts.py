"""Log text, reward and advantage of each part of a completion in the completions table.

TRL reads a table's columns before it computes advantages, so a column is added empty and filled later.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from accelerate.utils import gather_object
from torch import Tensor

if TYPE_CHECKING:
    from rlhf_cli.trainers.additions import Stack

_COLUMN = "{}.parts"


class PartColumns:
    """The rewards that have returned parts so far, on any rank: their columns stay in all later tables.

    Columns are gathered one by one, so every rank needs the same ones in the same order, whatever its rows got.
    """

    def __init__(self) -> None:
        self._names: list[str] = []

    def empty(self, stack: Stack, num_rows: int) -> dict[str, list[object]]:
        """Return column -> one None per row of this rank, for the rewards that have returned parts so far.

        Every rank must call this.
        """
        own = [name for name in stack.names if any(row is not None for row in stack.outcomes[name].tokens)]
        named = {*self._names, *gather_object(own)}
        self._names = [name for name in stack.names if name in named]
        return {_COLUMN.format(name): [None] * num_rows for name in self._names}

    def filled(self, stack: Stack, advantages: Tensor) -> dict[str, list[str | None]]:
        """Return column -> one JSON text per row of this rank: start, end, text, reward and advantage of each part.

        advantages: (rows of this rank, tokens), or (rows,) if all tokens of a row share one. A part's advantage is the
        mean over its tokens, null if it has no tokens.
        """
        return {
            _COLUMN.format(name): [_as_json(stack, name, row, advantages[row]) for row in range(len(advantages))]
            for name in self._names
        }


def _as_json(stack: Stack, name: str, row: int, advantages: Tensor) -> str | None:
    parts = stack.parts(name, row)
    if parts is None:
        return None
    of_parts = []
    for part in parts:
        of_tokens = advantages[list(part.tokens)] if advantages.ndim and part.tokens else advantages
        advantage = of_tokens.mean().item() if part.tokens else None
        shown = {"start": part.start, "end": part.end, "text": part.text, "reward": part.reward}
        of_parts.append({**shown, "advantage": advantage})
    return json.dumps(of_parts, ensure_ascii=False)
