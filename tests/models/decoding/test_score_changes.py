"""What changes scores keeps what it knows of the rows that stay, and what the caller gave stays the caller's."""

from __future__ import annotations

import torch
from transformers import LogitsProcessorList, RepetitionPenaltyLogitsProcessor, TopKLogitsWarper

from rlhf_cli.models.decoding.eligibility import of_rows

IDS = torch.tensor([[0, 0, 3, 4], [2, 3, 4, 5], [0, 6, 6, 3], [0, 0, 0, 2]])
"""Padded on the left with 0, which is a token as well: only what stands behind the padding is penalised."""


def test_a_penalty_begins_where_its_row_begins() -> None:
    """By hand: a row's scores of 1 are 1/2 for the tokens of its prompt, and of nobody else's."""
    first = torch.tensor([2, 0, 1, 3])
    given = LogitsProcessorList([RepetitionPenaltyLogitsProcessor(2.0, prompt_ignore_length=first)])
    rows = torch.tensor([0, 2])
    kept = of_rows(given, rows)
    scores = kept(IDS[rows], torch.ones(2, 8))
    assert scores.tolist() == [[1, 1, 1, 0.5, 0.5, 1, 1, 1], [1, 1, 1, 0.5, 1, 1, 0.5, 1]]
    again = of_rows(kept, torch.tensor([1]))(IDS[[2]], torch.ones(1, 8))
    assert again.tolist() == scores[1:].tolist()
    assert given(IDS, torch.ones(4, 8))[[0, 2]].tolist() == scores.tolist()
    assert given[0].prompt_ignore_length is first


def test_what_knows_no_rows_goes_on_as_it_is() -> None:
    given = LogitsProcessorList([TopKLogitsWarper(3), RepetitionPenaltyLogitsProcessor(1.5, prompt_ignore_length=2)])
    assert list(of_rows(given, torch.tensor([1]))) == list(given)
