"""Models on the hub, models loaded unsharded beside an engine, and prompts counted in tokens."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
from huggingface_hub.errors import GatedRepoError, OfflineModeIsEnabled, RepositoryNotFoundError
from tokenizers.processors import TemplateProcessing
from transformers import AutoConfig, TrainingArguments
from transformers.integrations import deepspeed

from rlhf_cli.errors import ModelError
from rlhf_cli.models.model_folders import require_model
from rlhf_cli.models.tiny import byte_tokenizer
from rlhf_cli.models.tokenizer_files import PromptTokens
from rlhf_cli.trainers.assemble.policy_loading import loading_unsharded


@pytest.mark.parametrize(
    ("kind", "hint"),
    [
        (GatedRepoError, "https://huggingface.co/org/model"),
        (RepositoryNotFoundError, "HF_TOKEN"),
        (OfflineModeIsEnabled, "hf download org/model"),
    ],
)
@pytest.mark.fault(45)
def test_an_error_of_the_hub_becomes_advice(monkeypatch: pytest.MonkeyPatch, kind: type[Exception], hint: str) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError("We couldn't do it.\nMore of it.") from kind.__new__(kind)

    monkeypatch.setattr(AutoConfig, "from_pretrained", fail)
    with pytest.raises(ModelError) as caught:
        require_model("org/model", where="model.path", revision=None, trust_remote_code=False)
    assert caught.value.where == "model.path"
    assert hint in f"{caught.value.hint} {caught.value.advice}"


class Zero3:
    """The part of DeepSpeed's configuration that `from_pretrained` reads before it shards."""

    def is_zero3(self) -> bool:
        return True


@pytest.fixture(params=["hf_deepspeed_config", "dschf"])
def args(request: pytest.FixtureRequest):
    """TrainingArguments with ZeRO-3 on: by their own argument, or by accelerate's file, whose plugin has it."""
    zero = Zero3()
    deepspeed.set_hf_deepspeed_config(zero)
    made = SimpleNamespace(deepspeed_plugin=SimpleNamespace(), **{})
    setattr(made if request.param == "hf_deepspeed_config" else made.deepspeed_plugin, request.param, zero)
    yield cast(TrainingArguments, made)
    deepspeed.unset_hf_deepspeed_config()


def test_models_are_loaded_unsharded_only_inside_the_context(args: TrainingArguments) -> None:
    assert deepspeed.is_deepspeed_zero3_enabled()
    with loading_unsharded(args):
        assert not deepspeed.is_deepspeed_zero3_enabled()
    assert deepspeed.is_deepspeed_zero3_enabled()


@pytest.fixture(scope="module")
def tokens() -> PromptTokens:
    return PromptTokens(byte_tokenizer(512))


def test_texts_are_counted_in_tokens_not_characters(tokens: PromptTokens) -> None:
    """A token is a byte, and ö has two bytes."""
    assert tokens.longer_than(8, ["öööööö", "a" * 9, "a" * 8, "ab"]) == {0: 12, 1: 9}


def test_conversations_are_counted_with_their_template(tokens: PromptTokens) -> None:
    prompts = [[{"role": "user", "content": text}] for text in ("a", "a" * 40)]
    (alone,) = tokens.longer_than(0, prompts[:1]).values()
    assert alone > 1
    assert tokens.longer_than(alone + 1, prompts) == {1: alone + 39}


@pytest.mark.parametrize("around", [1, 2])
def test_tokens_around_a_text_count(around: int) -> None:
    """Llama's tokenizer begins every text with a token, others end it with one as well."""
    tokenizer = byte_tokenizer(512)
    mark, special = tokenizer.eos_token, (tokenizer.eos_token, tokenizer.eos_token_id)
    single = f"{mark} $A" if around == 1 else f"{mark} $A {mark}"
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single=single, special_tokens=[special])
    assert PromptTokens(tokenizer).longer_than(20, ["a" * 20, "a" * (20 - around)]) == {0: 20 + around}
