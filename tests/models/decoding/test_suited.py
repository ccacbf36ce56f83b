"""If rows may not leave the batch, transformers generates by itself, and the reason is given."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from transformers import (
    DynamicCache,
    LlamaConfig,
    LogitsProcessor,
    LogitsProcessorList,
    StoppingCriteria,
    StoppingCriteriaList,
)

from rlhf_cli.models import live_generation
from rlhf_cli.models.live_generation import Generating, expected_mode
from tests.support.tiny_decoders import model_of, prompts, settings


class ByPlace(LogitsProcessor):
    """A processor that remembers rows by their place in the batch."""

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        assert len(input_ids) == 12
        return scores


class AllTogether(StoppingCriteria):
    """A criterion that ends all rows when the first has ended."""

    def __call__(self, input_ids: Any, scores: Any, **named: Any) -> Any:
        assert len(input_ids) == 12
        return torch.zeros(12, dtype=torch.bool)


@pytest.mark.parametrize(
    ("given", "named", "why"),
    [
        ({"num_beams": 2, "do_sample": False}, {}, "beam_search"),
        ({"use_cache": False}, {}, "use_cache=False"),
        ({"cache_implementation": "static"}, {}, "cache_implementation='static'"),
        ({"return_dict_in_generate": True}, {}, "return_dict_in_generate=True"),
        ({"prefill_chunk_size": 4}, {}, "prefill_chunk_size=4"),
        ({}, {"logits_processor": LogitsProcessorList([ByPlace()])}, "ByPlace"),
        ({}, {"stopping_criteria": StoppingCriteriaList([AllTogether()])}, "AllTogether"),
        ({}, {"prefix_allowed_tokens_fn": lambda row, ids: list(range(40))}, "PrefixConstrainedLogitsProcessor"),
        ({}, {"synced_gpus": False}, None),
        ({}, {"synced_gpus": True}, "synced_gpus"),
        ({}, {"token_type_ids": torch.zeros(12, 9)}, "token_type_ids"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_falls_back_by_name(monkeypatch: pytest.MonkeyPatch, given: Any, named: Any, why: str | None) -> None:
    """The fallback gives the same result as transformers alone."""
    model, generating = model_of("llama"), Generating()
    if "token_type_ids" in named:
        monkeypatch.setattr(model, "_validate_model_kwargs", lambda kwargs: None)
        given = {**given, "max_new_tokens": 1}
        monkeypatch.setattr(type(model), "forward", _without_token_types(type(model).forward))
    if named.get("synced_gpus"):
        monkeypatch.setattr(torch.distributed, "all_reduce", lambda *args, **named: None)
    torch.manual_seed(3)
    stock = model.generate(**prompts(), **named, generation_config=settings(**given))
    torch.manual_seed(3)
    with generating.of(model):
        ours = model.generate(**prompts(), **named, generation_config=settings(**given))
    assert generating.mode is not None
    assert (generating.mode.name == "live") is (why is None)
    assert why is None or why in generating.mode.why
    assert torch.equal(*(getattr(output, "sequences", output) for output in (stock, ours)))


def _without_token_types(forward: Any) -> Any:
    def pass_on(self: Any, *args: Any, token_type_ids: Any = None, **named: Any) -> Any:
        return forward(self, *args, **named)

    return pass_on


def test_each_kind_of_model_is_refused_for_its_own_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of("llama")
    assert live_generation.why_not_ahead(model, settings()) is None
    recurrent = LlamaConfig(num_hidden_layers=2, layer_types=["linear_attention", "full_attention"])
    for name, value, why in (
        ("is_remote_code", lambda: True, ("LlamaForCausalLM", "code")),
        ("_supports_default_dynamic_cache", lambda: False, ("LlamaForCausalLM", "cache")),
        ("config", SimpleNamespace(is_encoder_decoder=True), ("LlamaForCausalLM", "encoder")),
        ("config", recurrent, ("cache", "LinearAttentionLayer")),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(model, name, value)
            found = live_generation.why_not_ahead(model, settings())
        assert found is not None
        assert [word for word in why if word not in found] == []


def read_cache() -> DynamicCache:
    """Return a cache of one token per row."""
    cache = DynamicCache()
    cache.update(torch.zeros(12, 2, 1, 8), torch.zeros(12, 2, 1, 8), 0)
    return cache


@pytest.mark.parametrize(
    ("inputs", "why"),
    [
        ({"attention_mask": torch.ones(12, 9), "logits_to_keep": None, "other": None}, None),
        ({"token_type_ids": torch.ones(12, 9)}, "token_type_ids"),
        ({"attention_mask": torch.ones(11, 9)}, "attention_mask (11, 9)"),
        ({"attention_mask": torch.ones(12, 1, 9, 9)}, "attention_mask (12, 1, 9, 9)"),
        ({"position_ids": torch.ones(9)}, "position_ids (9,)"),
        ({live_generation.CACHE_INPUT: None}, "NoneType"),
        ({live_generation.CACHE_INPUT: read_cache()}, "not empty"),
    ],
)
def test_every_input_has_a_row_for_every_prompt(inputs: dict[str, Any], why: str | None) -> None:
    model = model_of("llama")
    given = {live_generation.CACHE_INPUT: DynamicCache(config=model.config), **inputs}
    found = live_generation.why_not_call(model, 12, LogitsProcessorList(), StoppingCriteriaList(), given)
    assert found is None if why is None else found is not None and why in found


def test_a_generate_method_of_the_instance_is_called_unchanged() -> None:
    """TRL's own tests and other libraries set one."""
    model, generating, called = model_of("llama"), Generating(), list[dict[str, Any]]()

    def theirs(**named: Any) -> torch.Tensor:
        called.append(named)
        return torch.tensor([[7]])

    with patch.object(model, "generate", side_effect=theirs) as on_instance:
        expected = expected_mode(model, settings(), is_plain=False)
        for _ in range(2):
            with generating.of(model):
                assert model.generate(**prompts(), top_k=3).tolist() == [[7]]
            assert model.generate is on_instance
    assert [sorted(named) for named in called] == [["attention_mask", "input_ids", "top_k"]] * 2
    assert generating.mode == expected
    assert expected.name == "plain"
    assert "generate" not in vars(model)
    with generating.of(model):
        model.generate(**prompts(), generation_config=settings(max_new_tokens=2))
    assert generating.mode.name == "live"


def test_sharded_weights_are_generated_with_by_transformers_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank whose rows have ended must still take part in the others' passes, as in transformers' own loop."""
    model = model_of("llama")
    assert not live_generation.is_in_parts(model)
    ranks = SimpleNamespace(is_available=lambda: True, is_initialized=lambda: True, get_world_size=lambda: 2)
    monkeypatch.setattr(live_generation.torch, "distributed", ranks)
    assert not live_generation.is_in_parts(model)  # every rank has all of them
    for name, sharded in (("is_deepspeed_zero3_enabled", lambda: True), ("is_fsdp_managed_module", lambda one: True)):
        with monkeypatch.context() as patched:
            patched.setattr(live_generation, name, sharded)
            assert live_generation.is_in_parts(model)
            patched.setattr(ranks, "get_world_size", lambda: 1)
            assert not live_generation.is_in_parts(model)  # a single rank
            patched.setattr(ranks, "is_initialized", lambda: False)
            assert not live_generation.is_in_parts(model)
    monkeypatch.undo()
    monkeypatch.setattr(live_generation, "is_in_parts", lambda model: True)
    generating = Generating()
    with generating.of(model):
        model.generate(**prompts(), generation_config=settings(max_new_tokens=2))
    assert generating.mode is not None
    assert "several ranks" in generating.mode.why
