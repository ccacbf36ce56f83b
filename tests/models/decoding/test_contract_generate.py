"""Every part of transformers' generation that we rely on. A change in a new version fails here."""

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


def test_a_loop_of_ours_takes_what_transformers_own_takes() -> None:
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


def test_what_our_loop_calls_is_what_theirs_calls() -> None:
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


def test_inputs_of_the_next_token_are_made_by_one_method() -> None:
    expected = ["self", "outputs", "model_kwargs", "is_encoder_decoder", "num_new_tokens"]
    assert parameters(GenerationMixin._update_model_kwargs_for_generation) == expected


def test_rows_of_a_cache_are_taken_by_one_method_a_layer() -> None:
    assert parameters(Cache.batch_select_indices) == ["self", "indices"]
    source = inspect.getsource(DynamicLayer)
    assert "self.keys = self.keys[indices, ...]" in source
    assert "torch.cat([self.keys, key_states], dim=-2)" in source  # so a view of fewer columns may stand there


_OF_OTHER_ROWS = ("batch_id", "self.state", "self.batch_size", "encoder_input_ids", "cur_len_cache")


@pytest.mark.parametrize("one", sorted(ROW_BY_ROW, key=lambda one: one.__name__), ids=lambda one: one.__name__)
def test_what_changes_scores_looks_at_each_row_alone(one: type) -> None:
    """It sets nothing while it is called but the device of what it has, and counts no rows."""
    source = inspect.getsource(one.__call__)
    kept = {line.strip() for line in source.splitlines() if line.strip().startswith("self.") and " = " in line}
    assert all(".to(" in line or line.startswith(("self.multi_token", "self.prepared", "self.length")) for line in kept)
    assert not any(text in source for text in _OF_OTHER_ROWS)
    assert any(text in inspect.getsource(logits_process.PrefixConstrainedLogitsProcessor) for text in _OF_OTHER_ROWS)
