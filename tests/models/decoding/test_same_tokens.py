"""Without dead rows a model writes what it writes with them: transformers' own `generate` is the other side."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rlhf_cli.models import live_generation as live_rows
from rlhf_cli.models.live_generation import Generating
from tests.support.tiny_decoders import LENGTHS, PAD, model_of, prompts, settings
from tests.support.tolerances import assert_close

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
    """Return what transformers generates and what we do, from the same seed, and hold the seeds' ends together."""
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


def decoded_by_hand(lengths: list[int]) -> int:
    """How many slots are decoded where rows leave as soon as more than an eighth of the batch have ended."""
    in_batch, slots = len(lengths), 0
    for num_tokens in range(1, max(lengths)):
        live = sum(length > num_tokens for length in lengths)
        in_batch = live if 8 * (in_batch - live) > in_batch else in_batch
        slots += in_batch
    return slots


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *(("llama", name) for name in SETTINGS),
        *((kind, "sampled, cut") for kind in ("llama bf16", "sliding", "mixed", "learned positions")),
    ],
)
def test_token_for_token(kind: str, name: str) -> None:
    """Greedy because the most probable token is one; sampled because every row draws what it would have drawn."""
    generating = Generating()
    stock, ours = both(kind, generating, **SETTINGS[name])
    assert torch.equal(stock, ours)
    assert generating.mode is not None
    assert generating.mode.name == "live"
    lengths = (stock[:, WIDTH:] != PAD).sum(dim=1)
    assert generating.num_tokens == lengths.sum()
    assert generating.prompt_slots == 6 * WIDTH  # of twelve rows six are read
    if name.startswith("sampled"):  # not all run to the end, and those that are done are not decoded
        assert len(set(lengths.tolist())) >= 4
        assert generating.decoded_slots < 0.7 * len(LENGTHS) * (lengths.max() - 1)
        assert generating.decoded_slots == decoded_by_hand(lengths.tolist())


def test_any_token_may_be_what_pads() -> None:
    stock, ours = both("llama", Generating(), pad_token_id=7, suppress_tokens=[7])
    assert torch.equal(stock, ours)
    assert (ours[:, -1] == 7).any()


def test_padding_that_no_row_needs_any_more_leaves_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two prompts have nine tokens, the next longest seven: where those two end first, two columns go with them."""
    padding: list[int] = []
    read = live_rows.LiveBatch.read_tokens

    def noted(self: live_rows.LiveBatch) -> torch.Tensor:
        new = self.ids.shape[1] - WIDTH - 1  # the last is not in the cache yet
        padding.append(WIDTH + new - self._cache.get_seq_length())
        longest = max(LENGTHS[row] for row in self.rows.tolist())
        assert padding[-1] <= WIDTH - longest  # no prompt has lost a token
        return read(self)

    monkeypatch.setattr(live_rows.LiveBatch, "read_tokens", noted)
    model, rows = model_of("llama"), prompts()
    for seed in range(4):
        torch.manual_seed(seed)
        stock = model.generate(**rows, generation_config=settings())
        torch.manual_seed(seed)
        with Generating().of(model):
            ours = model.generate(**rows, generation_config=settings())
        assert torch.equal(stock, ours)
    assert set(padding) >= {0, WIDTH - 7}


def test_kept_logps_are_the_models_own_of_the_tokens_it_sampled() -> None:
    """A pass over the whole rows says what they are: softmax of logits / temperature, nothing cut off or penalised."""
    model, generating = model_of("llama"), Generating()
    generating.logps_temperature = 0.7
    rows = prompts()
    with generating.of(model):
        found = model.generate(**rows, generation_config=settings(**SETTINGS["sampled, cut"]))
    logps = generating.take_logps()
    assert logps is not None
    assert generating.take_logps() is None
    with generating.of(model):
        for more in ({}, {"num_beams": 2}):  # transformers' own loop keeps none, and those before are not its
            model.generate(**rows, generation_config=settings(max_new_tokens=2, **more))
    assert generating.take_logps() is None
    is_token = found[:, WIDTH:] != PAD
    mask = torch.cat([rows["attention_mask"], is_token.long()], dim=1)
    positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
    with torch.no_grad():
        logits = model(input_ids=found, attention_mask=mask, position_ids=positions).logits[:, WIDTH - 1 : -1]
    expected = (logits / 0.7).log_softmax(dim=-1).gather(2, found[:, WIDTH:, None]).squeeze(2)
    assert_close(logps[is_token], expected[is_token])
    assert (logps[~is_token] == 0).all()
    wrong = logits.log_softmax(dim=-1).gather(2, found[:, WIDTH:, None]).squeeze(2)  # at temperature 1
    assert (logps - wrong)[is_token].abs().max() > 0.1


def test_dropout_lets_no_row_read_for_another() -> None:
    """In training TRL generates with dropout on: equal prompts that shared a pass would share its dropout."""
    model = model_of("llama").train()
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.1
    generating = Generating()
    with generating.of(model):
        model.generate(**prompts(), generation_config=settings())
    assert generating.prompt_slots == len(LENGTHS) * WIDTH
