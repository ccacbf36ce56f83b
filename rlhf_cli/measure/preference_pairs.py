"""Convert preference rows to pairs for a reward model: a prompt and two completions, as texts or messages.

Supported are TRL's formats (prompt, chosen, rejected; or chosen and rejected that both include the prompt) and
RewardBench's (prompt, chosen, rejected, subset; arXiv 2403.13787).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from rlhf_cli.errors import DataError
from rlhf_cli.rewards.completion_text import Completion
from rlhf_cli.suggest import nearest

Row: TypeAlias = dict[str, object]
"""Column -> value of one dataset row."""


@dataclass(frozen=True)
class Pairs:
    """Pairs of answers. `prompts` is the shared beginning, empty if the rows do not separate it."""

    prompts: list[Completion]
    chosen: list[Completion]
    rejected: list[Completion]

    def __len__(self) -> int:
        return len(self.chosen)


def pairs_of(rows: list[Row], *, as_chat: bool = False) -> Pairs:
    """Return the pairs of preference rows. `as_chat` turns plain texts into a user and an assistant message.

    Raise DataError for a missing column, or for a row that mixes texts and messages.
    """
    for column in ("chosen", "rejected"):
        if column not in rows[0]:
            raise DataError(
                f"a reward model is evaluated on pairs, and there is no column {column!r}",
                where="the evaluation rows",
                got="columns " + ", ".join(rows[0]),
                expected="prompt, chosen, rejected; or chosen and rejected with the prompt in both",
                hint=nearest(column, rows[0]),
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
    # Both sides hold the whole transcript. The prompt is what they share at the beginning, at least the first message.
    shared = 1
    while shared < min(len(chosen), len(rejected)) and chosen[shared] == rejected[shared]:
        shared += 1
    if chosen[:shared] != rejected[:shared]:
        raise _odd(row, number, "transcripts that begin with the same message, or a column `prompt`")
    return chosen[:shared], chosen[shared:], rejected[shared:]


def _odd(row: Row, number: int, expected: str) -> DataError:
    got = ", ".join(f"{name}: {type(row.get(name)).__name__}" for name in ("prompt", "chosen", "rejected"))
    return DataError("this is no pair", where=f"the evaluation rows, row {number}", got=got, expected=expected)
