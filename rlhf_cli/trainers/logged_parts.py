"""Write what each part of a completion got into the completions table: its text, its reward and its advantage.

TRL takes a table's columns before it has made advantages, so a column is entered empty and filled afterwards.
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
    """Keep which rewards have ever named parts, on any rank: a column that was in one table is in all that follow.

    Columns are gathered one by one, so that every rank needs the same ones in the same order, whatever its rows got.
    """

    def __init__(self) -> None:
        self._names: list[str] = []

    def empty(self, stack: Stack, num_rows: int) -> dict[str, list[object]]:
        """Return column -> nothing for each row of this rank, for the rewards that have named parts by now.

        Every rank has to call it.
        """
        own = [name for name in stack.names if any(row is not None for row in stack.outcomes[name].tokens)]
        named = {*self._names, *gather_object(own)}
        self._names = [name for name in stack.names if name in named]
        return {_COLUMN.format(name): [None] * num_rows for name in self._names}

    def filled(self, stack: Stack, advantages: Tensor) -> dict[str, list[str | None]]:
        """Return column -> a JSON text a row of this rank: start, end, text, reward and advantage of each part.

        advantages: (rows of this rank, tokens), or (rows,) where all tokens of a row have the same. A part's is the
        mean over its tokens, null where it has none.
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
