"""Makes pairs for a reward model of preference rows: a prompt and two completions, texts or messages.

Known are TRL's shapes (prompt, chosen, rejected; or chosen and rejected whole, each with the prompt in it) and
RewardBench's (prompt, chosen, rejected, subset; arXiv 2403.13787), which is the first with a column more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from rlhf_cli.errors import DataError
from rlhf_cli.rewards.completion_text import Completion
from rlhf_cli.suggest import did_you_mean

Row: TypeAlias = dict[str, object]
"""A row of a dataset maps column -> value."""


@dataclass(frozen=True)
class Pairs:
    """Holds pairs row by row; `prompts` are the beginning both sides share, empty where the rows do not part it off."""

    prompts: list[Completion]
    chosen: list[Completion]
    rejected: list[Completion]

    def __len__(self) -> int:
        return len(self.chosen)


def pairs_of(rows: list[Row], *, as_chat: bool = False) -> Pairs:
    """Return the pairs of preference rows. `as_chat` makes a user's and an assistant's message of plain texts.

    Raises DataError for a missing column, and for rows that are neither texts nor messages throughout.
    """
    for column in ("chosen", "rejected"):
        if column not in rows[0]:
            raise DataError(
                f"a reward model is evaluated on pairs, and there is no column {column!r}",
                where="the evaluation rows",
                got="columns " + ", ".join(rows[0]),
                expected="prompt, chosen, rejected; or chosen and rejected with the prompt in both",
                hint=did_you_mean(column, rows[0]),
            )
    parted = [_parted(row, number, as_chat) for number, row in enumerate(rows, 1)]
    return Pairs([one for one, _, _ in parted], [one for _, one, _ in parted], [one for _, _, one in parted])


def _parted(row: Row, number: int, as_chat: bool) -> tuple[Completion, Completion, Completion]:
    prompt, chosen, rejected = row.get("prompt"), row["chosen"], row["rejected"]
    if not chosen or not rejected:
        raise _odd(row, number, "something on both sides")
    if isinstance(chosen, str) and isinstance(rejected, str) and (prompt is None or isinstance(prompt, str)):
        if not as_chat:
            return prompt or "", chosen, rejected
        if prompt is None:
            raise _odd(row, number, "a prompt of its own, which --chat makes the user's message")
        asked = [{"role": "user", "content": prompt}]
        return asked, [{"role": "assistant", "content": chosen}], [{"role": "assistant", "content": rejected}]
    if isinstance(prompt, list) and isinstance(chosen, str) and isinstance(rejected, str):
        return prompt, [{"role": "assistant", "content": chosen}], [{"role": "assistant", "content": rejected}]
    has_prompt = isinstance(prompt, list) and bool(prompt)
    if not (isinstance(chosen, list) and isinstance(rejected, list) and (prompt is None or has_prompt)):
        raise _odd(row, number, "text on both sides, or a list of messages on both")
    if isinstance(prompt, list):
        return prompt, chosen, rejected
    # The whole transcript on both sides: what they share at the beginning is the prompt, at least the first message.
    shared = 1
    while shared < min(len(chosen), len(rejected)) and chosen[shared] == rejected[shared]:
        shared += 1
    if chosen[:shared] != rejected[:shared]:
        raise _odd(row, number, "transcripts that begin with the same message, or a column `prompt`")
    return chosen[:shared], chosen[shared:], rejected[shared:]


def _odd(row: Row, number: int, expected: str) -> DataError:
    got = ", ".join(f"{name}: {type(row.get(name)).__name__}" for name in ("prompt", "chosen", "rejected"))
    return DataError("this is no pair", where=f"the evaluation rows, row {number}", got=got, expected=expected)
