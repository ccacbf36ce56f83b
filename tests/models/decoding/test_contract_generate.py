"""The parts of transformers' generation that we rely on; a new version that changes them fails here."""

from __future__ import annotations

import inspect

import pytest
from transformers.cache_utils import Cache, DynamicLayer
from transformers.generation import GenerationMixin, logits_process

from rlhf_cli.models.live_eligibility import ROW_BY_ROW
from rlhf_cli.models.live_generation import Generating
from tests.support.signatures import parameters

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


def test_one_method_makes_the_inputs_of_the_next_token() -> None:
    expected = ["self", "outputs", "model_kwargs", "is_encoder_decoder", "num_new_tokens"]
    assert parameters(GenerationMixin._update_model_kwargs_for_generation) == expected


def test_one_method_selects_the_rows_of_a_cache() -> None:
    assert parameters(Cache.batch_select_indices) == ["self", "indices"]
    source = inspect.getsource(DynamicLayer)
    assert "self.keys = self.keys[indices, ...]" in source


_OF_OTHER_ROWS = ("batch_id", "self.state", "self.batch_size", "encoder_input_ids", "cur_len_cache")


@pytest.mark.parametrize("processor", sorted(ROW_BY_ROW, key=str), ids=lambda processor: processor.__name__)
def test_a_score_processor_of_the_list_treats_each_row_alone(processor: type) -> None:
    """A call changes only the device of its tensors, and counts no rows."""
    source = inspect.getsource(processor.__call__)
    kept = {line.strip() for line in source.splitlines() if line.strip().startswith("self.") and " = " in line}
    assert all(".to(" in line or line.startswith(("self.multi_token", "self.prepared", "self.length")) for line in kept)
    assert not any(text in source for text in _OF_OTHER_ROWS)
    assert any(text in inspect.getsource(logits_process.PrefixConstrainedLogitsProcessor) for text in _OF_OTHER_ROWS)
