"""A row to which no reward applies leaves every mask and every count, without a training."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from rlhf_cli.trainers.reward_mixin import RewardMixin
from tests.support.settled_columns import NAN, Case, Rule, column

ON_ONE_RANK = SimpleNamespace(gather=lambda tensor: tensor, process_index=0, num_processes=1)


class Alone(RewardMixin):
    """Has what was settled of two rows, and no trainer below it."""

    _own_rows = slice(0, 2)  # type: ignore[assignment]

    def __init__(self, *scores: float) -> None:
        self.accelerator: Any = ON_ONE_RANK
        self._settled = Case([column(*scores)], [Rule("one")], [1.0], num_generations=2).settle()


def batch() -> dict[str, Any]:
    """Return two rows of three and two tokens; a tool wrote one token of each."""
    return {
        "completion_mask": torch.tensor([[1, 1, 1], [1, 1, 0]]),
        "tool_mask": torch.tensor([[1, 0, 1], [0, 1, 1]]),
        "old_logps": torch.tensor([-3.0, -900.0]),
        "num_items_in_batch": torch.tensor(3),
    }


def test_a_row_without_a_score_counts_nowhere() -> None:
    """Of the first row's three tokens the policy wrote two."""
    output = batch()
    Alone(1.0, NAN)._drop_unscorable(output)
    assert output["completion_mask"].tolist() == [[1, 1, 1], [0, 0, 0]]
    assert output["tool_mask"].tolist() == [[1, 0, 1], [0, 0, 0]]
    assert output["old_logps"].tolist() == [-3.0, 0.0]
    assert int(output["num_items_in_batch"]) == 2


def test_without_tools_every_token_that_is_left_is_counted() -> None:
    output = batch()
    del output["tool_mask"], output["old_logps"]
    Alone(NAN, 1.0)._drop_unscorable(output)
    assert output.keys() == {"completion_mask", "num_items_in_batch"}
    assert int(output["num_items_in_batch"]) == 2
    output = {"completion_mask": torch.ones(2, 3)}
    Alone(NAN, 1.0)._drop_unscorable(output)
    assert output.keys() == {"completion_mask"}


def test_negative_control_with_scores_everywhere_nothing_changes() -> None:
    output, before = batch(), batch()
    Alone(1.0, 2.0)._drop_unscorable(output)
    assert all(torch.equal(output[name], before[name]) for name in before)
