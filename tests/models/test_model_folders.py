"""Model folders are checked before anything is loaded; models on the hub; prompts counted in tokens."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from huggingface_hub.errors import GatedRepoError, OfflineModeIsEnabled, RepositoryNotFoundError
from tokenizers.processors import TemplateProcessing
from transformers import AutoConfig, TrainingArguments
from transformers.integrations import deepspeed

from rlhf_cli.errors import ModelError
from rlhf_cli.models.byte_tokenizer import byte_tokenizer
from rlhf_cli.models.cache import merged_model
from rlhf_cli.models.model_folders import (
    describe_critic,
    describe_model,
    describe_reward_model,
    is_language_model,
    is_reward_model,
    require_model,
)
from rlhf_cli.models.policy_model import PolicyModel
from rlhf_cli.models.scalar_heads import build_critic, head_names, load_reward_model
from rlhf_cli.models.tokenizer_files import PromptTokens
from rlhf_cli.trainers.assemble.policy_loading import loading_unsharded
from tests.support.model_copies import model_copy


@pytest.mark.parametrize("path", ["./nowhere", "/no/such/folder", "a/b/c"])
def test_no_such_folder(path: str) -> None:
    """Only a policy may be the embedded model."""
    for key, may_be_embedded in (("model.path (command line)", True), ("rewards.helpful.model (command line)", False)):
        with pytest.raises(ModelError) as caught:
            describe_model(path, where=key)
        assert (caught.value.where, "model=tiny" in str(caught.value.expected)) == (key, may_be_embedded)


def test_what_holds_no_model_is_listed(tmp_path: Path) -> None:
    listings = ["empty", *(", ".join("abcdef"[:count]) for count in range(1, 7)), "a, b, c, d, e, f, ..."]
    for name, listing in zip(["", *"abcdefg"], listings, strict=True):
        if name:
            (tmp_path / name).touch()
        for path, got in ((tmp_path, listing), *([(tmp_path / name, "a file")] if name else [])):
            with pytest.raises(ModelError) as caught:
                describe_model(str(path), where="w")
            assert (caught.value.where, caught.value.got) == ("w", f"{path}: {got}")


def test_a_model_without_a_tokenizer_needs_another_one(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    with pytest.raises(ModelError) as caught:
        describe_model(str(tmp_path), where="model.path")
    got, hint = f"{tmp_path}: config.json", "model.tokenizer=FOLDER_OR_HUB_ID"
    assert (caught.value.where, caught.value.got, caught.value.hint) == ("model.path", got, hint)
    assert describe_model(str(tmp_path), where="model.path", needs_tokenizer=False).endswith("(LlamaForCausalLM)")
    (tmp_path / "config.json").rename(tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "a/b"}')
    with pytest.raises(ModelError) as caught:
        describe_model(str(tmp_path), where="model.path")
    assert caught.value.hint == "model.tokenizer=a/b"


def folder_of(folder: Path, config: dict[str, object], file: str = "config.json") -> str:
    folder.mkdir(exist_ok=True)
    (folder / file).write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text("{}")
    return str(folder)


REWARD_MODEL = {"architectures": ["Qwen3ForSequenceClassification"], "id2label": {"0": "LABEL_0"}}
CAUSAL = {"architectures": ["Qwen3ForCausalLM"]}


def refused(path: str, *, conversational: bool = False) -> ModelError:
    with pytest.raises(ModelError) as caught:
        describe_reward_model(path, where="w", conversational=conversational)
    return caught.value


def test_reward_models_are_described(tmp_path: Path) -> None:
    path = folder_of(tmp_path, REWARD_MODEL)
    assert describe_reward_model(path, where="w") == f"{path} (Qwen3ForSequenceClassification)"
    assert describe_reward_model("Skywork/Some-RM", where="w") == "Skywork/Some-RM (hub)"
    own = folder_of(tmp_path, {"architectures": ["InternRewardModel"]})  # of its own code: the weights will tell
    assert describe_reward_model(own, where="w").endswith("(InternRewardModel)")
    with pytest.raises(ModelError) as caught:
        is_reward_model(own, where="w")
    assert (caught.value.where, caught.value.got) == ("w", f"{own}: InternRewardModel")


@pytest.mark.parametrize(
    ("names", "expected"),
    [([], False), (["Own"], False), (["Own", "GPT2LMHeadModel"], True), (["T5ForCausalLM"], True)],
)
def test_one_name_of_a_class_tells_a_language_model(names: list[str], expected: bool) -> None:
    assert is_language_model({"architectures": names}) is expected


@pytest.mark.parametrize(
    ("config", "got"),
    [
        *(({"architectures": [name]}, name) for name in ("Qwen3ForCausalLM", "GPT2LMHeadModel")),
        (REWARD_MODEL | {"id2label": {"0": "no", "1": "maybe", "2": "yes"}}, "num_labels 3"),
        ({"architectures": ["BertForSequenceClassification"]}, "num_labels 2"),
        ({"architectures": ["BertForSequenceClassification"], "num_labels": 5}, "num_labels 5"),
    ],
)
def test_other_models_are_refused_as_reward_models(tmp_path: Path, config, got: str) -> None:
    path = folder_of(tmp_path, config)
    error = refused(path)
    assert error.where == "w"
    assert str(error.got).endswith(got)
    describe_model(path, where="model.path")  # it is a model


def test_an_adapter_names_its_base(tmp_path: Path) -> None:
    """The base needs no tokenizer, the message names the adapter's file, and a template may lie beside either."""
    base = folder_of(tmp_path / "base", CAUSAL)
    Path(base, "tokenizer_config.json").unlink()
    adapter = {"base_model_name_or_path": base, "task_type": "SEQ_CLS"}
    path = folder_of(tmp_path / "adapter", adapter, "adapter_config.json")
    assert describe_reward_model(path, where="w") == f"{path} (adapter of {base})"
    assert describe_model(path, where="w") == f"{path} (adapter)"
    assert (is_reward_model(path, where="w"), is_reward_model(base, where="w")) == (True, False)
    assert refused(path, conversational=True).got == f"{path}, {base}"
    Path(base, "chat_template.jinja").write_text("{{ messages }}")
    describe_reward_model(path, where="w", conversational=True)
    folder_of(tmp_path / "adapter", adapter | {"task_type": "CAUSAL_LM"}, "adapter_config.json")
    assert refused(path).got == f"{path}: task_type CAUSAL_LM"
    assert not is_reward_model(path, where="w")
    folder_of(tmp_path / "adapter", adapter | {"base_model_name_or_path": "/gone"}, "adapter_config.json")
    critic: Any = functools.partial(describe_critic, policy=base, tokenizer=None)
    for describe in (describe_model, describe_reward_model, is_reward_model, critic):
        with pytest.raises(ModelError) as caught:
            describe(path, where="w")
        named = f"w: the base that {path}/adapter_config.json names"
        assert (caught.value.where, caught.value.got) == (named, "/gone (looked at /gone)")
    for base in ("/gone", None):
        folder_of(tmp_path / "adapter", adapter | {"base_model_name_or_path": base}, "adapter_config.json")
        assert describe_model(path, where="w", needs_model=base is None) == f"{path} (adapter)"
    folder_of(tmp_path / "adapter", adapter | {"base_model_name_or_path": path}, "adapter_config.json")
    assert describe_model(path, where="w") == f"{path} (adapter)"  # the checks of the base's own key will tell


def test_conversations_need_a_chat_template(tmp_path: Path) -> None:
    path = folder_of(tmp_path, REWARD_MODEL)
    error = refused(path, conversational=True)
    assert (error.where, error.got, "data.prompt" in str(error.advice)) == ("w", path, True)
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "{{ messages }}"}')
    describe_reward_model(path, where="w", conversational=True)


@pytest.mark.parametrize("content", ["{", "[]", '{"a":' * 5000])
@pytest.mark.parametrize("file", ["config.json", "generation_config.json", "model.safetensors.index.json"])
def test_a_file_that_transformers_would_fail_on_is_named(tmp_path: Path, file: str, content: str) -> None:
    folder = folder_of(tmp_path, CAUSAL)
    (tmp_path / file).write_text(content)
    for describe in (describe_model, describe_reward_model):
        with pytest.raises(ModelError) as caught:
            describe(folder, where="model.path")
        assert caught.value.where == "model.path"
        assert str(caught.value.got).startswith(f"{tmp_path / file}: ")


def test_weights_of_another_config_are_refused(tmp_path: Path) -> None:
    """transformers would fill the third layer with random numbers, and only log it."""
    folder = model_copy(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    describe_model(str(folder), where="model.path")
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": config["num_hidden_layers"] + 1}))
    with pytest.raises(ModelError) as caught:
        describe_model(str(folder), where="model.path")
    assert (caught.value.where, str(folder) in str(caught.value.got)) == ("model.path", True)


@pytest.mark.parametrize(("where", "typed"), [("model.path (command line)", "model.path="), ("--model", "--model ")])
def test_the_model_of_a_run_is_offered(tmp_path: Path, where: str, typed: str) -> None:
    """The newest checkpoint, and rather the model than a checkpoint."""
    run = tmp_path / "runs" / "one"
    for inside in ("snapshots/abc", "checkpoint-9", "checkpoint-10", "checkpoints/checkpoint-2", "model"):
        (run / inside).mkdir(parents=True)
        folder_of(run / inside, CAUSAL)
        with pytest.raises(ModelError) as caught:
            describe_model(str(run), where=where)
        assert caught.value.hint == f"{typed}{run / inside}"


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
    def fail(*given: object, **named: object) -> None:
        assert (given, named) == (("org/model",), {"revision": "r1", "trust_remote_code": True})
        raise OSError("We couldn't do it.\nMore of it.") from kind.__new__(kind)

    monkeypatch.setattr(AutoConfig, "from_pretrained", fail)
    with pytest.raises(ModelError) as caught:
        require_model("org/model", where="model.path", revision="r1", trust_remote_code=True)
    assert (caught.value.where, caught.value.got) == ("model.path", "We couldn't do it.")
    assert hint in f"{caught.value.hint} {caught.value.advice}"


def test_an_architecture_that_transformers_lacks_is_refused_also_in_a_folder(tmp_path: Path) -> None:
    for config in ({"model_type": "unheard"}, {}, {"model_type": "llama", "hidden_size": "wide"}):
        path = folder_of(tmp_path / "model", config)
        with pytest.raises(ModelError) as caught:
            require_model(path, where="teacher.path", revision=None, trust_remote_code=False)
        assert (caught.value.where, "transformers" in str(caught.value.expected)) == ("teacher.path", True)
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter/adapter_config.json").write_text(json.dumps({"base_model_name_or_path": path, "r": 2}))
    require_model(str(tmp_path / "adapter"), where="model.path", revision=None, trust_remote_code=False)
    with pytest.raises(ModelError):
        merged_model(str(tmp_path / "adapter"))
    for load in (
        lambda: PolicyModel(Path(path)),
        lambda: head_names(path),
        lambda: build_critic("policy", path, dtype="auto", dropout=0.0),
        lambda: load_reward_model(folder_of(Path(path), config | {"architectures": REWARD_MODEL["architectures"]})),
    ):
        with pytest.raises(ModelError):
            load()


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


def test_conversations_are_counted_with_their_template() -> None:
    tokens = PromptTokens(byte_tokenizer(512))
    prompts = [[{"role": "user", "content": text}] for text in ("a", "a" * 40)]
    (alone,) = tokens.longer_than(0, prompts[:1]).values()
    written = tokens.tokenizer.apply_chat_template(prompts[0], add_generation_prompt=True, tokenize=False)
    assert alone == len(tokens.tokenizer(written)["input_ids"])
    assert tokens.longer_than(alone + 1, prompts) == {1: alone + 39}
    tokens.tokenizer.chat_template = "{{ mood }}"
    assert PromptTokens(tokens.tokenizer, {"mood": "gay"}).longer_than(0, prompts) == {0: 3, 1: 3}


@pytest.mark.parametrize("around", [1, 2])
def test_tokens_around_a_text_count(around: int) -> None:
    """Llama's tokenizer begins every text with a token, others end it with one as well; ö has two tokens here."""
    tokenizer = byte_tokenizer(512)
    mark, special = tokenizer.eos_token, (tokenizer.eos_token, tokenizer.eos_token_id)
    single = f"{mark} $A" if around == 1 else f"{mark} $A {mark}"
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single=single, special_tokens=[special])
    assert PromptTokens(tokenizer).longer_than(20, ["ö" * 10, "a" * (20 - around)]) == {0: 20 + around}
    assert PromptTokens(tokenizer).last("abcdef", 4) == "abcdef"[around - 4 :]
    assert [PromptTokens(tokenizer).last("ab", limit) for limit in (20, 1 + around, around)] == ["ab", "b", ""]
