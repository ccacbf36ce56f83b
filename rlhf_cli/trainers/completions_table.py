"""Fill TRL's table of completions with the dataset's columns and the stack's results, and save it.

TRL reads a table's columns before it computes advantages, so a column is added empty and filled later.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
from accelerate.utils import gather_object
from torch import Tensor

from rlhf_cli.rewards.stack.reward_stack import RewardStack
from rlhf_cli.text.json_values import finite_or_none
from rlhf_cli.trainers.trl_protocol import TrlTrainer

_COLUMN = "{}.parts"


class PartColumns:
    """The rewards that returned parts so far, on any rank; columns are gathered one by one, so every rank needs all."""

    names: tuple[str, ...] = ()

    def empty(self, stack: RewardStack, num_rows: int) -> dict[str, list[object]]:
        """Return column -> a None per row of this rank, for rewards that returned parts. Every rank must call this."""
        own = [name for name in stack.names if stack.outcomes[name].has_parts]
        named = {*self.names, *gather_object(own)}
        self.names = tuple(name for name in stack.names if name in named)
        return {_COLUMN.format(name): [None] * num_rows for name in self.names}

    def filled(self, stack: RewardStack, advantages: Tensor) -> dict[str, list[str | None]]:
        """Return column -> one JSON text per row of this rank: start, end, text, reward and advantage of each part.

        advantages: (rows of this rank, tokens), or (rows,) if all tokens of a row share one. A part's advantage is the
        mean over its tokens, null if it has no tokens.
        """

        def of_row(name: str, row: int) -> str | None:
            if (parts := stack.parts(name, row)) is None:
                return None
            shown = []
            for part in parts:
                of_tokens = advantages[row]
                of_tokens = of_tokens[list(part.tokens)] if of_tokens.ndim and part.tokens else of_tokens
                known = {field: getattr(part, field) for field in ("start", "end", "text", "reward")}
                shown.append(known | {"advantage": of_tokens.mean().item() if part.tokens else None})
            return json.dumps(shown, ensure_ascii=False)

        rows = range(len(advantages))
        return {_COLUMN.format(name): [of_row(name, row) for row in rows] for name in self.names}


def storable(completion: object) -> object:
    """Return a completion whose calls' arguments, which differ by row, are JSON text, as OpenAI stores them."""

    def stored(call: dict[str, Any]) -> dict[str, Any]:
        function = call.get("function", {})
        given = function.get("arguments")
        text = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
        return {**call, "function": {**function, "arguments": text}}

    if not isinstance(completion, list):
        return completion
    return [
        {**one, "tool_calls": list(map(stored, one["tool_calls"]))} if one.get("tool_calls") else one
        for one in completion
    ]


def make_columns_storable(columns: Mapping[str, deque[Any]]) -> None:
    """Replace values by texts in each column that no file can hold, as of objects or types that differ by row."""
    for values in columns.values():
        try:
            pyarrow.array(list(values), from_pandas=True)
        except (pyarrow.ArrowException, ValueError, TypeError, OverflowError):
            texts = [None if value is None else str(value).encode(errors="replace").decode() for value in values]
            values.clear()
            values.extend(texts)


def write_table(trainer: TrlTrainer, file: Path) -> None:
    """Save the table if TRL has not: its GRPOTrainer saves it to disk, its RLOOTrainer only to wandb."""
    logs = trainer._logs
    if file.exists() or not logs["prompt"]:
        return
    columns = {
        "step": [trainer.state.global_step] * len(logs["prompt"]),
        "prompt": logs["prompt"],
        "completion": logs["completion"],
        **logs["rewards"],
        **logs["extra"],
        "advantage": logs["advantages"],
    }
    file.parent.mkdir(exist_ok=True)
    # TRL's own table has null for missing scores instead of NaN.
    rows = {name: list(map(finite_or_none, values)) for name, values in columns.items()}
    pyarrow.parquet.write_table(pyarrow.table(rows), file)
