"""Live generation gives the tokens of transformers' own `generate`."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rlhf_cli.models import live_generation
from rlhf_cli.models.live_generation import Generating
from tests.support.tiny_decoders import LENGTHS, PAD, model_of, prompts, settings

SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "greedy, penalised": {
        "do_sample": False,
        "repetition_penalty": 1.5,
        "min_new_tokens": 3,
        "no_repeat_ngram_size": 2,
    },
    "sampled": {},
    "sampled, cut": {"top_k": 12, "top_p": 0.9, "min_p": 0.01, "temperature": 0.7, "repetition_penalty": 1.3},
}
WIDTH = max(LENGTHS)


def both(kind: str, generating: Generating, **named: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what transformers generates and what we generate from the same seed; compare the generators' states."""
    model, found, states = model_of(kind.removesuffix(" bf16")), [], []
    if kind.endswith("bf16"):
        model.to(torch.bfloat16)
    for ours in (False, True):
        torch.manual_seed(3)
        with generating.of(model) if ours else torch.no_grad():
            found.append(model.generate(**prompts(), generation_config=settings(**named)))
        states.append(torch.get_rng_state())
    assert torch.equal(*states)
    assert "generate" not in vars(model)
    return found[0], found[1]


def decoded_by_hand(lengths: list[int], most: float = 1 / 8) -> int:
    """Count the decoded slots if rows leave as soon as more than a share of the batch has ended."""
    in_batch, slots = len(lengths), 0
    for num_tokens in range(1, max(lengths)):
        live = sum(length > num_tokens for length in lengths)
        in_batch = live if in_batch - live > most * in_batch else in_batch
        slots += in_batch
    return slots


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *(("llama", name) for name in SETTINGS),
        *((kind, "sampled, cut") for kind in ("llama bf16", "sliding", "mixed", "learned positions")),
    ],
)
def test_every_token_is_the_same(kind: str, name: str, read: list[tuple[int, int]]) -> None:
    generating = Generating()
    stock, ours = both(kind, generating, **SETTINGS[name])
    assert torch.equal(stock, ours)
    assert generating.mode is not None
    assert generating.mode.name == "live"
    lengths = (stock[:, WIDTH:] != PAD).sum(dim=1)
    assert read[0] == (6, WIDTH)  # twelve rows have six prompts
    if name.startswith("sampled"):  # rows end at different lengths, and ended rows are not decoded
        assert len(set(lengths.tolist())) >= 4
        decoded = sum(rows * tokens for rows, tokens in read[1:])
        assert decoded < 0.7 * len(LENGTHS) * (lengths.max() - 1)
        assert decoded == decoded_by_hand(lengths.tolist())


@pytest.mark.parametrize("most", [1 / 6, 0.5])
def test_a_row_stays_as_long_as_no_more_than_the_share_has_ended(
    most: float, read: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_generation, "_MOST_ENDED", most)
    stock, _ = both("llama", Generating(), **SETTINGS["sampled, cut"])
    lengths = (stock[:, WIDTH:] != PAD).sum(dim=1).tolist()
    assert sum(rows * tokens for rows, tokens in read[1:]) == decoded_by_hand(lengths, most)
    assert sum(length == 1 for length in lengths) == 2  # of twelve, so that the bound is met


def test_any_token_may_be_the_padding() -> None:
    stock, ours = both("llama", Generating(), pad_token_id=7, suppress_tokens=[7])
    assert torch.equal(stock, ours)
    assert (ours[:, -1] == 7).any()


def test_with_dropout_every_prompt_is_read_for_itself(read: list[tuple[int, int]]) -> None:
    """In training TRL generates with dropout on: equal prompts in one pass would share its dropout."""
    model = model_of("llama").train()
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.1
    with Generating().of(model):
        model.generate(**prompts(), generation_config=settings())
    assert read[0] == (len(LENGTHS), WIDTH)
