"""Tokens for some rows of a batch are those that torch.multinomial draws for all of them; torch is the other side."""

from __future__ import annotations

import pytest
import torch

from rlhf_cli.models.decoding.generating import draw

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
        draw(spoilt, torch.arange(NUM_ROWS), NUM_ROWS)
