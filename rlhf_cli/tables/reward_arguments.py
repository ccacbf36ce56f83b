"""The arguments that TRL gives a reward function beside the columns of the dataset, one row each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RewardArgument:
    """One of them. `is_by_row`: it has an entry a completion, else it is one for the whole batch.

    `is_text`: what was asked and answered, as texts, messages or token ids. Only these make a function a reward, and
    only these are sent to a worker process.
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
