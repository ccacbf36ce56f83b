"""The share of groups whose totals are all the same: by hand, in a training, and where TRL's own has it wrong."""

from __future__ import annotations

import pyarrow.parquet
import torch

from rlhf_cli.rewards.stack.dead_signal import share_of_dead_groups
from rlhf_cli.runs.metrics_file import read_metrics, series

EQUAL = (torch.tensor([[1.0, 1.0, 0.9286]] * 8) * torch.tensor([1.0, 0.5, 0.2])).sum(dim=1)
"""Eight equal totals of float32, as weights of 1, 0.5 and 0.2 make them."""


def test_by_hand() -> None:
    totals = torch.cat([EQUAL, EQUAL + torch.tensor([0.0] * 7 + [1e-3])])
    assert share_of_dead_groups(totals, 8) == 0.5
    assert share_of_dead_groups(EQUAL, 8) == 1.0


def test_negative_control_the_deviation_of_equal_totals_is_not_zero() -> None:
    assert not torch.isclose(EQUAL.std(), torch.zeros(()))  # as TRL asks


def test_in_training(train, says) -> None:
    """Every prompt gets the same answer, so all totals of a group are equal."""
    says([50, 51, 52])
    _, folder = train("trainer=rloo", "guards.no_signal=off")
    assert series(read_metrics(folder.metrics), "frac_reward_zero_std")[1] == [1.0] * 3


def test_it_is_what_the_tables_of_completions_say(train) -> None:
    _, folder = train("guards.no_signal=off")
    shares = []
    for step in (1, 2, 3):
        table = pyarrow.parquet.read_table(folder.path / "completions" / f"completions_{step:05d}.parquet")
        totals = table["total"].to_pylist()
        groups = [totals[first : first + 4] for first in (0, 4)]
        shares.append(sum(max(group) - min(group) < 1e-6 for group in groups) / 2)
    assert series(read_metrics(folder.metrics), "frac_reward_zero_std")[1] == shares
