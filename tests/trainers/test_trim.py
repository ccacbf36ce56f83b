"""Trimming and sorting only move and remove padding."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from rlhf_cli.tables.passes import Passes
from rlhf_cli.trainers.forward_pass import by_length, reordered_in_windows, trimmed, used_columns, with_two_columns
from rlhf_cli.trainers.pass_mixin import PassMixin
from rlhf_cli.trainers.trl_protocol import TrlBatch

PROMPT, COMPLETION = 5, 7


def longest_first(rows: TrlBatch) -> Tensor:
    return by_length(rows["completion_mask"])


def ragged(rows: int, seed: int) -> dict[str, Tensor]:
    """A batch in TRL's layout in which every token, advantage and value is unlike every other."""
    generator = torch.Generator().manual_seed(seed)
    prompts = torch.randint(1, PROMPT + 1, (rows,), generator=generator)
    completions = torch.randint(0, COMPLETION + 1, (rows,), generator=generator)
    prompt_mask = (torch.arange(PROMPT) >= PROMPT - prompts.unsqueeze(1)).long()
    completion_mask = (torch.arange(COMPLETION) < completions.unsqueeze(1)).long()
    numbers = 1 + torch.arange(rows * (PROMPT + COMPLETION)).view(rows, -1)
    batch = {
        "prompt_ids": numbers[:, :PROMPT] * prompt_mask,
        "prompt_mask": prompt_mask,
        "completion_ids": numbers[:, PROMPT:] * completion_mask,
        "completion_mask": completion_mask,
        "num_items_in_batch": completion_mask.sum(),
    }
    for index, name in enumerate(("advantages", "returns", "rollout_values", "old_per_token_logps")):
        batch[name] = (numbers[:, PROMPT:] + 0.1 * (index + 1)) * completion_mask
    return batch


def facts(batches: list[dict[str, Any]]) -> list[list[Any]]:
    """Per row of any of these batches: its prompt, its completion, and what stands at each of its tokens."""
    found = []
    for batch in batches:
        names = [name for name in batch if not name.startswith("prompt") and batch[name].dim() == 2]
        for row in range(len(batch["prompt_ids"])):
            prompt = batch["prompt_ids"][row][batch["prompt_mask"][row].bool()].tolist()
            kept = batch["completion_mask"][row].bool()
            found.append([prompt, *(batch[name][row][kept].tolist() for name in sorted(names))])
    return found


def split(batch: dict[str, Tensor], size: int) -> list[dict[str, Tensor]]:
    rows = range(0, len(batch["prompt_ids"]), size)
    return [{n: v[start : start + size] if v.dim() else v for n, v in batch.items()} for start in rows]


@pytest.mark.parametrize("seed", range(4))
class TestNothingIsLost:
    def test_trimmed(self, seed: int) -> None:
        batch = ragged(1 + seed % 5, seed)
        found = trimmed(batch, may_move=True)
        assert facts([found]) == facts([batch])
        assert found["num_items_in_batch"] == batch["num_items_in_batch"]
        widths = {found[name].shape[1] for name in found if found[name].dim() == 2 and not name.startswith("prompt")}
        assert widths == {max(1, int(batch["completion_mask"].sum(dim=1).max()))}
        assert found["prompt_ids"].shape[1] == int(batch["prompt_mask"].sum(dim=1).max())
        not_moved = trimmed(batch, may_move=False)
        assert facts([not_moved]) == facts([batch])
        assert not_moved["prompt_ids"].shape[1] == PROMPT

    @pytest.mark.parametrize("window", [1, 3, 5])
    def test_reordered_in_windows(self, seed: int, window: int) -> None:
        whole = ragged(12, seed)
        whole["advantages"] = whole["prompt_ids"].sum(dim=1)  # one a row
        batches = split(whole, 2)
        found = reordered_in_windows(batches, window, longest_first)
        assert [len(batch["prompt_ids"]) for batch in found] == [2] * 6
        for start in range(0, 6, window):
            inside = slice(start, start + window)
            assert sorted(facts(found[inside])) == sorted(facts(batches[inside]))
            lengths = torch.cat([batch["completion_mask"].sum(dim=1) for batch in found[inside]])
            assert window == 1 or bool((lengths.diff() <= 0).all())
        assert all(torch.equal(batch["advantages"], batch["prompt_ids"].sum(dim=1)) for batch in found)


def test_answers_of_one_token_keep_one_column_and_get_a_second_of_padding() -> None:
    batch = ragged(3, seed=0)
    batch["completion_mask"] = (torch.arange(COMPLETION) < 1).long().expand(3, -1)
    batch["prompt_mask"] = (torch.arange(PROMPT) >= PROMPT - 1).long().expand(3, -1)
    batch["importance_sampling_ratio"] = torch.ones(3, 1)
    one = trimmed(batch, may_move=True)
    assert (one["prompt_ids"].shape[1], one["completion_ids"].shape[1]) == (1, 1)
    two = with_two_columns(one)
    assert torch.equal(two["returns"], torch.cat([one["returns"], torch.zeros(3, 1)], dim=1))
    assert two["completion_mask"].tolist() == [[1, 0]] * 3
    assert all(two[name] is one[name] for name in ("prompt_ids", "importance_sampling_ratio", "num_items_in_batch"))
    for unchanged in (two, {**one, "pixel_values": torch.zeros(3, 3)}):
        assert with_two_columns(unchanged) is unchanged


def test_packed_rows_are_ordered_by_prompt_and_trimmed_ones_by_length() -> None:
    rows = ragged(4, seed=2)
    for name in ("prompt_ids", "prompt_mask"):
        rows[name] = rows[name][[0, 1, 0, 1]]  # two prompts, taken in turn
    rows["completion_mask"] = (torch.arange(COMPLETION) < torch.tensor([1, 4, 2, 3]).unsqueeze(1)).long()
    orders = {
        mode: PassMixin._order(SimpleNamespace(passes=Passes(mode)), rows).tolist()  # type: ignore[arg-type]
        for mode in ("packed", "trimmed")
    }
    assert [row % 2 for row in orders["packed"]] in ([0, 0, 1, 1], [1, 1, 0, 0])
    assert orders["trimmed"] == [1, 3, 2, 0]
    # torch sorts more than 16 numbers in another way
    assert by_length(torch.ones((40, 3), dtype=torch.long)).tolist() == list(range(40))


def test_what_is_not_known_is_left_as_it_is() -> None:
    batch = {**ragged(4, seed=0), "pixel_values": torch.zeros(4, 3)}
    assert trimmed(batch, may_move=True) is batch
    for batches in ([batch, batch], [batch]):
        assert reordered_in_windows(batches, 2, longest_first)[0] is batch


def test_of_rows_that_are_all_padding_a_column_of_each_part_stays() -> None:
    empty = torch.zeros(2, PROMPT + COMPLETION)
    assert used_columns(empty, COMPLETION, may_move=True) == slice(PROMPT - 1, PROMPT + 1)
    assert used_columns(empty, COMPLETION, may_move=False) == slice(0, PROMPT + 1)
