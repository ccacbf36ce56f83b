"""Parts of decoding: draws for some rows of a batch, equal prompts, dropout, and what we rely on in transformers."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import nn
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer
from transformers.generation import GenerationMixin, logits_process

from rlhf_cli.models import live_generation
from rlhf_cli.models.live_generation import CACHE_INPUT, ROW_BY_ROW, Generating, LiveBatch, draw
from tests.support.signatures import parameters
from tests.support.tiny_decoders import PAD, VOCABULARY, model_of, settings

NUM_ROWS, NUM_TOKENS = 7, 33


def probabilities() -> torch.Tensor:
    return (2 * torch.randn(NUM_ROWS, NUM_TOKENS, generator=torch.Generator().manual_seed(1))).softmax(dim=-1)


@pytest.mark.parametrize("rows", [range(NUM_ROWS), [0], [6], [2, 3, 4], [1, 3, 5]], ids=str)
def test_rows_get_the_tokens_that_multinomial_draws_for_the_whole_batch(rows: list[int]) -> None:
    """For thirty tokens; the generator ends in the same state. Drawn for themselves alone they would get others."""
    kept = torch.tensor(list(rows))
    found, states = [], []
    for drawn in (
        lambda: torch.multinomial(probabilities(), num_samples=1).squeeze(1)[kept],
        lambda: draw(probabilities()[kept], kept, NUM_ROWS),
        lambda: draw(probabilities()[kept], torch.arange(len(kept)), len(kept)),
    ):
        torch.manual_seed(5)
        found.append(torch.stack([drawn() for _ in range(30)]))
        states.append(torch.get_rng_state())
    assert torch.equal(found[0], found[1])
    assert torch.equal(states[0], states[1])
    assert torch.equal(found[0], found[2]) is (len(kept) == NUM_ROWS)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_generation_ends_at_a_probability_that_is_not_finite(value: float) -> None:
    model = model_of("llama")
    with torch.no_grad():
        model.lm_head.weight[7] = value
    with Generating().of(model), pytest.raises(RuntimeError, match="probability tensor contains"):
        model.generate(input_ids=IDS, attention_mask=MASK, generation_config=settings(do_sample=True))


WORD = 9
IDS = torch.tensor([[PAD, PAD, WORD], [PAD, PAD, WORD], [PAD, PAD, WORD], [WORD, WORD, WORD]])
MASK = torch.tensor([[0, 0, 1], [0, 1, 1], [0, 0, 1], [1, 1, 1]])
"""The second row begins with the token that pads the others, as in models that pad with the end of texts."""


def test_a_prompt_that_contains_the_padding_token_is_another_prompt(read: list[tuple[int, int]]) -> None:
    """Four rows have three prompts; each row's answer is the one that transformers gives it alone."""
    model = model_of("llama")
    config = settings(do_sample=False, max_new_tokens=6)
    with Generating().of(model):
        found = model.generate(input_ids=IDS, attention_mask=MASK, generation_config=config)
    assert read[0] == (3, IDS.shape[1])
    alone = [
        model.generate(input_ids=IDS[row : row + 1], attention_mask=MASK[row : row + 1], generation_config=config)
        for row in range(len(IDS))
    ]
    for row, expected in zip(found[:, 3:].tolist(), alone, strict=True):
        answer = expected[0, 3:].tolist()
        assert row[: len(answer)] == answer
    assert found[0, 3:].tolist() != found[1, 3:].tolist()


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_logits_are_copied_in_float32_to_the_device_of_the_tokens(device: str) -> None:
    """A model over several devices has them elsewhere, and score processors change them in place."""
    answer = SimpleNamespace(logits=torch.ones(4, 2, VOCABULARY))
    model = Mock(return_value=answer)
    model.prepare_inputs_for_generation.return_value = model._update_model_kwargs_for_generation.return_value = {}
    batch = LiveBatch(model, IDS.to(device), {CACHE_INPUT: DynamicCache()})
    for dtype in (torch.float32, torch.bfloat16):
        answer.logits = answer.logits.to(dtype)
        found = batch.read_tokens()
        assert (found.dtype, found.shape) == (torch.float32, (4, VOCABULARY))
        assert {found.device.type, batch.rows.device.type, batch.is_live.device.type} == {device}
        found.zero_()
        assert (answer.logits == 1).all()
    assert model.call_args.kwargs == {"return_dict": True}


@pytest.mark.parametrize(
    ("module", "numbers", "drops"),
    [
        *((module, {}, True) for module in (nn.Dropout(0.1), nn.AlphaDropout(0.1))),
        *((module, {}, False) for module in (nn.Dropout(0.0), nn.Dropout(0.1).eval(), nn.Linear(2, 2))),
        (nn.Identity(), {"attention_dropout": 0.1}, True),  # a plain number, as of attention
        *((nn.Identity(), numbers, False) for numbers in ({"attention_dropout": 0.0}, {"dropout": "no", "rate": 0.1})),
        (nn.Identity().eval(), {"attention_dropout": 0.1}, False),
        (nn.Sequential(nn.Dropout(0.1).eval(), nn.Dropout(0.2)), {}, True),
    ],
)
def test_models_with_active_dropout_are_found(module: nn.Module, numbers: dict[str, Any], drops: bool) -> None:
    vars(module).update(numbers)
    assert live_generation.drops_out(module) is drops


GENERATE = inspect.getsource(GenerationMixin.generate)
SAMPLE = inspect.getsource(GenerationMixin._sample)


def test_our_loop_takes_the_arguments_of_transformers_loop() -> None:
    """`generate` calls `decoding_method(self, input_ids, logits_processor=, ..., **model_kwargs)`."""
    own = [name for name in parameters(Generating.decode) if name not in ("self", "model", "inputs")]
    theirs = [name for name in parameters(GenerationMixin._sample) if name not in ("self", "synced_gpus", "streamer")]
    assert own == theirs[: len(own)]
    assert theirs[len(own) :] == ["model_kwargs"]
    for text in (
        "if isinstance(custom_generate, Callable):\n            decoding_method = custom_generate",
        "generation_mode_kwargs = self._extract_generation_mode_kwargs(",
        "self._prepare_cache_for_generation(",
        'model_kwargs["use_cache"] = generation_config.use_cache',
    ):
        assert text in GENERATE, text


def test_our_loop_calls_what_transformers_loop_calls() -> None:
    for text in (
        "self.prepare_inputs_for_generation(",
        "self._update_model_kwargs_for_generation(",
        "self._optimize_model_for_decode()",
        "logits_processor(input_ids, next_token_logits)",
        "torch.multinomial(probs, num_samples=1)",
        "generation_config._pad_token_tensor",
        "stopping_criteria(input_ids, scores)",
        "(is_deepspeed_zero3_enabled() or is_fsdp_managed_module(self)) and world_size > 1",
    ):
        assert text in SAMPLE + inspect.getsource(GenerationMixin._extract_generation_mode_kwargs), text
    prefill = inspect.getsource(GenerationMixin._prefill)
    assert "if generation_config.prefill_chunk_size is None:" in prefill
    assert "self.prepare_inputs_for_generation(" in prefill


def test_one_method_makes_the_inputs_of_the_next_token_and_one_selects_the_rows_of_a_cache() -> None:
    expected = ["self", "outputs", "model_kwargs", "is_encoder_decoder", "num_new_tokens"]
    assert parameters(GenerationMixin._update_model_kwargs_for_generation) == expected
    assert parameters(Cache.batch_select_indices) == ["self", "indices"]
    assert "self.keys = self.keys[indices, ...]" in inspect.getsource(DynamicLayer)


_OF_OTHER_ROWS = ("batch_id", "self.state", "self.batch_size", "encoder_input_ids", "cur_len_cache")


@pytest.mark.parametrize("processor", sorted(ROW_BY_ROW, key=str), ids=lambda processor: processor.__name__)
def test_a_score_processor_of_the_list_treats_each_row_alone(processor: type) -> None:
    """A call changes only the device of its tensors, and counts no rows."""
    source = inspect.getsource(processor.__call__)
    kept = {line.strip() for line in source.splitlines() if line.strip().startswith("self.") and " = " in line}
    assert all(".to(" in line or line.startswith(("self.multi_token", "self.prepared", "self.length")) for line in kept)
    assert not any(text in source for text in _OF_OTHER_ROWS)
    assert any(text in inspect.getsource(logits_process.PrefixConstrainedLogitsProcessor) for text in _OF_OTHER_ROWS)
