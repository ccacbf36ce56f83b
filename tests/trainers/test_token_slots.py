"""Slots and real tokens of passes, against counts made by hand of small ragged batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from rlhf_cli.tables.modes import Passes
from rlhf_cli.trainers.pass_mixin import PassMixin
from rlhf_cli.trainers.step_profile import count_rows
from rlhf_cli.trainers.token_slots import TokenSlots, count, counted_slots, uncounted

IDS = torch.zeros(2, 5, dtype=torch.long)
MASK = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]])


@pytest.fixture
def slots() -> Iterator[TokenSlots]:
    with counted_slots() as counted:
        yield counted


class Logps:
    def _get_per_token_logps_and_entropies(self, *given: torch.Tensor, **others: object) -> tuple[torch.Tensor, ...]:
        self.given, self.others = given, others
        return torch.zeros(2, 3), torch.zeros(2, 3), torch.zeros(())


def test_a_batch_of_rows_is_counted_by_its_masks(slots: TokenSlots) -> None:
    """Two rows of 5 and 2 in 10 slots, and KTO's second set, 3 of 4; the prompts in front of them are in these."""
    batch = {
        "input_ids": IDS,
        "attention_mask": MASK,
        "KL_input_ids": torch.zeros(1, 4),
        "KL_attention_mask": torch.tensor([[1, 1, 1, 0]]),
        "prompt_input_ids": IDS,
        "labels": IDS,
    }
    count_rows(batch)
    assert slots.taken() == (14, 10)
    assert slots.taken() == (0, 0)


def test_a_batch_without_a_mask_has_no_padding(slots: TokenSlots) -> None:
    count_rows({"input_ids": IDS})
    assert slots.taken() == (10, 10)


def test_trls_own_pass_for_log_probabilities_is_counted_and_handed_on_as_it_is(slots: TokenSlots) -> None:
    trainer: Any = type("Counted", (PassMixin, Logps), {"passes": Passes("plain")})()
    trainer._get_per_token_logps_and_entropies("model", IDS, MASK, 3, batch_size=1, num_images=None)
    assert trainer.given[0] == "model"
    assert trainer.given[3:] == (3, 1, False)
    assert trainer.others == {"num_images": None}
    assert slots.taken() == (10, 7)


def test_rows_that_share_slots_may_have_fewer_than_tokens(slots: TokenSlots) -> None:
    count(6, torch.tensor(9))
    count(1, 1)
    assert slots.taken() == (7, 10)


def test_an_evaluation_is_not_counted(slots: TokenSlots) -> None:
    with uncounted():
        count(6, 6)
    count(1, 1)
    assert slots.taken() == (1, 1)


def test_nobody_asks_after_it_is_closed() -> None:
    with counted_slots() as counted:
        pass
    count(6, 6)
    assert counted.taken() == (0, 0)
