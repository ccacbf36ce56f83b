"""What a packed run holds, by hand: a prompt once in a micro-batch, and the head's softmax instead of TRL's tiles."""

from __future__ import annotations

import random

import pytest

from rlhf_cli.jobs.prepare import prepare
from rlhf_cli.plan.memory.estimate import MemoryPlan, Moment, memory_plan
from rlhf_cli.plan.memory.models_of_run import Lengths, RunLoad, run_load
from rlhf_cli.plan.memory.parts import most_prompts
from rlhf_cli.tables.modes import PassMode
from tests.support.small_runs import PPO_SMALL, SMALL

pytestmark = pytest.mark.usefixtures("place")
PROMPT, ANSWER, VOCABULARY = 6, 4, 258
SORTS = ("trainer.args.gradient_accumulation_steps=4",)


def loaded(*words: str, completions: int, passes: PassMode = "packed") -> RunLoad:
    experiment = prepare([*SMALL, *words], keep_run_names=True).experiment
    return run_load(experiment, Lengths(PROMPT, 0), completions, passes)


def planned(*words: str, completions: int = 8, passes: PassMode = "packed") -> MemoryPlan:
    experiment = prepare([*SMALL, *words], keep_run_names=True).experiment
    load = run_load(experiment, Lengths(PROMPT, 0), completions, passes)
    return memory_plan(experiment, load, processes=1, on_gpu=False, bf16=False)


def learning(*words: str, passes: PassMode = "packed") -> Moment:
    return next(one for one in planned(*words, passes=passes).moments if one.what.startswith("learning"))


@pytest.mark.parametrize("group", [1, 3, 4, 8])
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 6, 8, 12])
def test_prompts_of_a_part_of_whole_groups(rows: int, group: int) -> None:
    """Against a list of 24 groups, cut into parts: the most that any of them has."""
    prompts = [number // group for number in range(24 * group)]
    parts = [prompts[start : start + rows] for start in range(0, len(prompts) - rows + 1, rows)]
    assert most_prompts(rows, group) == max(len(set(part)) for part in parts)


@pytest.mark.parametrize(
    ("words", "completions", "prompts"),
    [
        ((), 8, 2),  # one micro-batch is the whole round: 8 rows of 2 prompts, in whatever order
        (SORTS, 32, 2),  # four micro-batches of one step: sorted by prompt
        (("trainer.args.steps_per_generation=4",), 32, 8),  # TRL shuffles, and a step has a part of the round alone
        ((*SORTS, "trainer.args.loss_type=bnpo"), 32, 8),  # a mean over the micro-batch: rows stay where they are
        ((*SORTS, "trainer.args.entropy_coef=0.1"), 32, 8),
        (("trainer.args.steps_per_generation=2",), 16, 4),  # and there are no more than the round has
        ((*PPO_SMALL,), 16, 8),
    ],
)
def test_prompts_of_a_micro_batch(words: tuple[str, ...], completions: int, prompts: int) -> None:
    """8 rows a micro-batch, groups of 4."""
    assert loaded(*words, completions=completions).learned().prompts == prompts


def test_no_order_of_a_shuffled_round_has_more() -> None:
    """Negative control of the table above: in 200 shuffled rounds of 8 prompts by 4 some 8 rows have more than 2."""
    rows, shuffling = [number // 4 for number in range(32)], random.Random(0)
    seen = set()
    for _ in range(200):
        shuffling.shuffle(rows)
        seen |= {len(set(rows[start : start + 8])) for start in range(0, 32, 8)}
    assert 2 < max(seen) <= 8


def test_places_by_hand() -> None:
    """Two prompts of 6 without their last token, and 8 rows of 4: 2 x 5 + 8 x 4; a critic's rows have one more."""
    load = loaded(completions=8)
    assert load.learned().size == 2 * 5 + 8 * 4
    assert load.learned(with_last=True).size == 2 * 5 + 8 * 5
    assert loaded(completions=8, passes="trimmed").learned().size == 8 * 10
    assert loaded("trainer.args.per_device_eval_batch_size=4", completions=8).passed().size == 2 * 5 + 8 * 4


def test_the_heads_softmax_is_that_of_the_answers_alone() -> None:
    """Logits, softmax and their product of 8 x 4 places by 258 words, float32; TRL's 8.25 tiles of all 80 places where
    rows go plain.
    """
    a_tile = 4 * 8 * ANSWER * VOCABULARY
    assert learning().parts["logits"] == learning(passes="trimmed").parts["logits"] == 3 * a_tile
    head, states = 4 * VOCABULARY * 16, 4 * 8 * (PROMPT + ANSWER) * 16
    assert learning(passes="plain").parts["logits"] == 8.25 * 4 * 8 * (PROMPT + ANSWER) * VOCABULARY + head + states
    assert learning("trainer.args.entropy_coef=0.1").parts["logits"] == 3 * a_tile  # its gradient takes less


def test_a_softmax_that_is_too_large_goes_in_trls_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    a_tile = 4 * 8 * ANSWER * VOCABULARY
    monkeypatch.setattr("rlhf_cli.plan.memory.parts.MAX_SOFTMAX_BYTES", a_tile)
    assert learning().parts["logits"] == 3 * a_tile
    monkeypatch.setattr("rlhf_cli.plan.memory.parts.MAX_SOFTMAX_BYTES", a_tile - 1)
    assert learning().parts["logits"] == 8.25 * a_tile + 4 * VOCABULARY * 16 + 4 * 8 * ANSWER * 16


def test_packed_rows_never_keep_more_than_padded_ones() -> None:
    for words in ((), SORTS, PPO_SMALL, ("model.lora.r=2",), ("trainer.args.gradient_checkpointing=false",)):
        packed, plain = (learning(*words, passes=mode).parts["activations"] for mode in ("packed", "plain"))
        assert packed < plain, words
