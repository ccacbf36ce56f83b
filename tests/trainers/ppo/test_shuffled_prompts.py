"""The answers of a prompt stay in one minibatch, in random order of prompts; with shuffle_by=row they do as in TRL."""

from __future__ import annotations

import torch

from rlhf_cli.trainers.ppo.rollout import shuffled_prompts
from tests.support.watched_critic import Watched, logged

FOUR = ("trainer.args.num_generations=4",)
"""Rounds of two minibatches of eight rows: two prompts each."""


def prompts_by_minibatch(seen: Watched) -> list[int]:
    return [len(batch["prompt_ids"].unique(dim=0)) for batch in seen.inputs]


def test_a_minibatch_has_whole_prompts_and_reads_each_once(watch) -> None:
    together = watch(*FOUR, "trainer.args.max_steps=4", name="together")
    apart = watch(*FOUR, "trainer.args.max_steps=4", "trainer.args.shuffle_by=row", name="apart")
    assert prompts_by_minibatch(together) == [2] * 4
    assert max(prompts_by_minibatch(apart)) > 2  # control: TRL's way
    slots = [sum(logged(one.folder, "passes/slots_per_token")) for one in (together, apart)]
    assert slots[0] < slots[1]


def test_rows_of_a_rank_by_hand() -> None:
    """Ranks of five rows, three answers a prompt: rank 1 has rows 5 to 9, of the prompts 1, 2 and 3 (1 | 2 2 2 | 3)."""
    rows = {"row": torch.arange(5, 10), "text": list("fghij"), "all": torch.tensor(7.0), "none": None}
    orders = set()
    for seed in range(40):
        torch.manual_seed(seed)
        found = shuffled_prompts(rows, first=5, num_generations=3)
        order = found["row"].tolist()
        orders.add(tuple(order))
        assert found["text"] == ["abcdefghij"[row] for row in order]
        assert (found["all"], found["none"]) == (rows["all"], None)
    # rows 6, 7 and 8 are of one prompt, 5 and 9 each of another
    assert orders == {
        (5, 6, 7, 8, 9),
        (5, 9, 6, 7, 8),
        (6, 7, 8, 5, 9),
        (6, 7, 8, 9, 5),
        (9, 5, 6, 7, 8),
        (9, 6, 7, 8, 5),
    }
