"""Models are found on the hub, loaded unsharded beside an engine, and count the tokens of prompts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
from huggingface_hub.errors import GatedRepoError, OfflineModeIsEnabled, RepositoryNotFoundError
from tokenizers.processors import TemplateProcessing
from transformers import AutoConfig, TrainingArguments
from transformers.integrations import deepspeed

from rlhf_cli.errors import ModelError
from rlhf_cli.models.loading import PromptTokens, loading_unsharded, require_model
from rlhf_cli.models.tiny import byte_tokenizer

# A model that the hub does not give is refused in our words, before anything is loaded.


def refused_with(monkeypatch: pytest.MonkeyPatch, cause: BaseException) -> ModelError:
    """What comes of transformers' OSError over an error of the hub's own client."""

    def fail(*_: object, **__: object) -> None:
        raise OSError("We couldn't do it.\nMore of it.") from cause

    monkeypatch.setattr(AutoConfig, "from_pretrained", fail)
    with pytest.raises(ModelError) as caught:
        require_model("org/model", where="model.path", revision=None, trust_remote_code=False)
    assert caught.value.where == "model.path"
    return caught.value


@pytest.mark.parametrize(
    ("kind", "what", "hint"),
    [
        (GatedRepoError, "the hub gives org/model only to", "https://huggingface.co/org/model"),
        (RepositoryNotFoundError, "there is no model org/model on the hub", "HF_TOKEN"),
        (OfflineModeIsEnabled, "org/model cannot be reached on the hub", "hf download org/model"),
    ],
)
@pytest.mark.fault(45)
def test_why(monkeypatch: pytest.MonkeyPatch, kind: type[Exception], what: str, hint: str) -> None:
    error = refused_with(monkeypatch, kind.__new__(kind))
    assert error.what.startswith(what)
    assert hint in f"{error.hint} {error.advice}"


# Under ZeRO-3 transformers loads models in shards; only models beside the engine are loaded unsharded.


class Zero3:
    """All that `from_pretrained` asks of the configuration which it finds, before it makes shards."""

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


def test_whole_inside_and_in_shards_again_outside(args: TrainingArguments) -> None:
    assert deepspeed.is_deepspeed_zero3_enabled()
    with loading_unsharded(args):
        assert not deepspeed.is_deepspeed_zero3_enabled()
    assert deepspeed.is_deepspeed_zero3_enabled()


# Tokens of prompts, against what TRL's own rollouts are given; a token of this tokenizer is a byte.


@pytest.fixture(scope="module")
def tokens() -> PromptTokens:
    return PromptTokens(byte_tokenizer(512))


def test_texts_are_counted_in_tokens_and_not_in_characters(tokens: PromptTokens) -> None:
    """ö has two bytes: six of them are twelve tokens."""
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
