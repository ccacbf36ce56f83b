"""Which prompts are read once for several rows: those of the same tokens in the same places, and no others."""

from __future__ import annotations

import torch

from rlhf_cli.models.decoding.generating import Generating
from rlhf_cli.models.decoding.live_batch import first_of_each
from tests.support.tiny_decoders import PAD, model_of, settings

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
    assert generating.live.slots.prompt == 3 * IDS.shape[1]
    alone = [model.generate(input_ids=IDS[row : row + 1], attention_mask=MASK[row : row + 1], generation_config=config)
             for row in range(len(IDS))]  # fmt: skip
    for row, expected in zip(found[:, 3:].tolist(), alone, strict=True):
        answer = expected[0, 3:].tolist()
        assert row[: len(answer)] == answer
    assert found[0, 3:].tolist() != found[1, 3:].tolist()


def test_the_first_of_each_by_hand() -> None:
    firsts, which = first_of_each(torch.tensor([[7, 7], [3, 1], [7, 7], [0, 9], [3, 1], [7, 7]]))
    assert firsts.tolist() == [0, 1, 3]
    assert which.tolist() == [0, 1, 0, 2, 1, 0]
