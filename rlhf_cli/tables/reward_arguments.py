"""Lists the arguments that TRL passes to a reward function in addition to the dataset's columns."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RewardArgument:
    """An argument of a reward function. `is_by_row`: it has one entry per completion, else one for the whole batch.

    `is_text`: it holds prompts or completions, as texts, messages or token ids. A function needs one of these to count
    as a reward, and only these are sent to a worker process.
    """

    name: str
    is_by_row: bool = False
    is_text: bool = False


_ROWS = (
    RewardArgument("prompts", is_by_row=True, is_text=True),
    RewardArgument("completions", is_by_row=True, is_text=True),
    RewardArgument("completion_ids", is_by_row=True, is_text=True),
    RewardArgument("environments", is_by_row=True),
    RewardArgument("trainer_state"),
    RewardArgument("log_extra"),
    RewardArgument("log_metric"),
)

REWARD_ARGUMENTS: dict[str, RewardArgument] = {row.name: row for row in _ROWS}
"""Name -> row. Every other argument that a reward function requires is a column of the dataset."""
