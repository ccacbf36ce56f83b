"""Parts of decoding: draws for some rows of a batch, equal prompts, score processors of kept rows, dropout."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import nn
from transformers import LogitsProcessorList, RepetitionPenaltyLogitsProcessor

from rlhf_cli.models import live_eligibility
from rlhf_cli.models.live_eligibility import of_rows
from rlhf_cli.models.live_generation import Generating, draw, refuse_not_finite
from tests.support.tiny_decoders import PAD, model_of, settings

# Tokens for some rows of a batch are those that torch.multinomial draws for all of them; torch is the other side.


NUM_ROWS, NUM_TOKENS = 7, 33


def probabilities() -> torch.Tensor:
    return (2 * torch.randn(NUM_ROWS, NUM_TOKENS, generator=torch.Generator().manual_seed(1))).softmax(dim=-1)


@pytest.mark.parametrize("rows", [range(NUM_ROWS), [0], [6], [2, 3, 4], [0, 2, 3, 6], [1, 3, 5]], ids=str)
def test_rows_get_what_they_would_have_got(rows: list[int]) -> None:
    """For thirty tokens one after the other; the generator ends where it would have ended."""
    kept = torch.tensor(list(rows))
    torch.manual_seed(5)
    whole = [torch.multinomial(probabilities(), num_samples=1).squeeze(1)[kept] for _ in range(30)]
    state = torch.get_rng_state()
    torch.manual_seed(5)
    ours = [draw(probabilities()[kept], kept, NUM_ROWS) for _ in range(30)]
    assert torch.equal(torch.stack(whole), torch.stack(ours))
    assert torch.equal(state, torch.get_rng_state())


def test_negative_control_without_those_that_are_gone_the_others_get_their_numbers() -> None:
    kept = torch.tensor([1, 3, 5])
    torch.manual_seed(5)
    whole = [torch.multinomial(probabilities(), num_samples=1).squeeze(1)[kept] for _ in range(30)]
    torch.manual_seed(5)
    alone = [draw(probabilities()[kept], torch.arange(3), 3) for _ in range(30)]
    assert not torch.equal(torch.stack(whole), torch.stack(alone))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_no_probability_is_refused_as_torch_refuses_it(value: float) -> None:
    spoilt = probabilities()
    spoilt[2, 3] = value
    with pytest.raises(RuntimeError, match="probability tensor contains"):
        refuse_not_finite(spoilt.sum().item())
    refuse_not_finite(probabilities().sum().item())


def test_generation_ends_at_a_probability_that_is_not_finite() -> None:
    model = model_of("llama")
    with torch.no_grad():
        model.lm_head.weight[7] = float("nan")
    with Generating().of(model), pytest.raises(RuntimeError, match="probability tensor contains"):
        model.generate(input_ids=IDS, attention_mask=MASK, generation_config=settings(do_sample=True))


# Which prompts are read once for several rows: those of the same tokens in the same places, and no others.


WORD = 9
IDS = torch.tensor([[PAD, PAD, WORD], [PAD, PAD, WORD], [PAD, PAD, WORD], [WORD, WORD, WORD]])
MASK = torch.tensor([[0, 0, 1], [0, 1, 1], [0, 0, 1], [1, 1, 1]])
"""The second begins with a token that pads the others: as where a model's padding is the end of its texts."""


def test_padding_and_the_token_that_pads_are_two() -> None:
    """Three prompts for four rows; each row's answer is the one that transformers gives it alone, by itself."""
    model, generating = model_of("llama"), Generating()
    config = settings(do_sample=False, max_new_tokens=6)
    with generating.of(model):
        found = model.generate(input_ids=IDS, attention_mask=MASK, generation_config=config)
    assert generating.prompt_slots == 3 * IDS.shape[1]
    alone = [model.generate(input_ids=IDS[row : row + 1], attention_mask=MASK[row : row + 1], generation_config=config)
             for row in range(len(IDS))]  # fmt: skip
    for row, expected in zip(found[:, 3:].tolist(), alone, strict=True):
        answer = expected[0, 3:].tolist()
        assert row[: len(answer)] == answer
    assert found[0, 3:].tolist() != found[1, 3:].tolist()


# What changes scores keeps what it knows of the rows that stay, and what the caller gave stays the caller's.


PADDED_IDS = torch.tensor([[0, 0, 3, 4], [2, 3, 4, 5], [0, 6, 6, 3], [0, 0, 0, 2]])
"""Padded on the left with 0, which is a token as well: only what stands behind the padding is penalised."""


@pytest.mark.skipif(
    "Tensor" not in str(inspect.signature(RepetitionPenaltyLogitsProcessor.__init__)),
    reason="this transformers has one beginning for all rows",
)
def test_a_penalty_begins_where_its_row_begins() -> None:
    """By hand: a row's scores of 1 are 1/2 for the tokens of its own prompt only."""
    first = torch.tensor([2, 0, 1, 3])
    given = LogitsProcessorList([RepetitionPenaltyLogitsProcessor(2.0, prompt_ignore_length=first)])
    rows = torch.tensor([0, 2])
    kept = of_rows(given, rows)
    scores = kept(PADDED_IDS[rows], torch.ones(2, 8))
    assert scores.tolist() == [[1, 1, 1, 0.5, 0.5, 1, 1, 1], [1, 1, 1, 0.5, 1, 1, 0.5, 1]]
    again = of_rows(kept, torch.tensor([1]))(PADDED_IDS[[2]], torch.ones(1, 8))
    assert again.tolist() == scores[1:].tolist()
    assert given(PADDED_IDS, torch.ones(4, 8))[[0, 2]].tolist() == scores.tolist()
    assert given[0].prompt_ignore_length is first


# Which models leave something out by chance, so that no row may be read for another.


class _Dropping(nn.Module):
    """What drops out by a number of its own, as attention does."""

    def __init__(self, **numbers: Any) -> None:
        super().__init__()
        vars(self).update(numbers)


@pytest.mark.parametrize(
    ("module", "drops"),
    [
        (nn.Dropout(0.1), True),
        (nn.Dropout(0.0), False),
        (nn.Dropout(0.1).eval(), False),
        (nn.AlphaDropout(0.1), True),
        (nn.Linear(2, 2), False),
        (_Dropping(attention_dropout=0.1), True),
        (_Dropping(attention_dropout=0.0), False),
        (_Dropping(dropout="none", momentum=0.1), False),
        (_Dropping(attention_dropout=0.1).eval(), False),
        (nn.Sequential(nn.Dropout(0.1).eval(), nn.Dropout(0.2)), True),
    ],
)
def test_what_is_left_out_by_chance(module: nn.Module, drops: bool) -> None:
    assert live_eligibility.drops_out(module) is drops
