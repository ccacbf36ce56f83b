"""Model folders are checked before anything is loaded; models on the hub; prompts counted in tokens."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from huggingface_hub.errors import GatedRepoError, OfflineModeIsEnabled, RepositoryNotFoundError
from transformers import AutoConfig
from transformers.integrations import deepspeed

from rlhf_cli.errors import ModelError
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
from rlhf_cli.trainers.assemble.policy_loading import loading_unsharded
from tests.support.model_copies import model_copy

REWARD_MODEL = {"architectures": ["Qwen3ForSequenceClassification"], "id2label": {"0": "LABEL_0"}}
CAUSAL = {"architectures": ["Qwen3ForCausalLM"]}


def folder_of(folder: Path, config: dict[str, object], file: str = "config.json") -> str:
    folder.mkdir(exist_ok=True)
    (folder / file).write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text("{}")
    return str(folder)


def refused(path: Path | str, describe: Callable[..., object] = describe_model, **named: Any) -> ModelError:
    with pytest.raises(ModelError) as caught:
        describe(str(path), **{"where": "w"} | named)
    assert caught.value.where.startswith(named.get("where", "w"))
    return caught.value


@pytest.mark.parametrize("path", ["./nowhere", "/no/such/folder", "a/b/c"])
def test_no_such_folder(path: str) -> None:
    """Only a policy may be the embedded model."""
    for key, may_be_embedded in (("model.path", True), ("rewards.helpful.model", False)):
        error = refused(path, where=f"{key} (command line)")
        assert ("model=tiny" in str(error.expected)) is may_be_embedded


def test_what_holds_no_model_is_listed(tmp_path: Path) -> None:
    listings = ["empty", *(", ".join("abcdef"[:count]) for count in range(1, 7)), "a, b, c, d, e, f, ..."]
    for name, listing in zip(["", *"abcdefg"], listings, strict=True):
        if name:
            (tmp_path / name).touch()
            assert refused(tmp_path / name).got == f"{tmp_path / name}: a file"
        assert refused(tmp_path).got == f"{tmp_path}: {listing}"


def test_a_model_without_a_tokenizer_needs_another_one(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    error = refused(tmp_path, where="model.path")
    assert (error.got, error.hint) == (f"{tmp_path}: config.json", "model.tokenizer=FOLDER_OR_HUB_ID")
    assert describe_model(str(tmp_path), where="model.path", needs_tokenizer=False).endswith("(LlamaForCausalLM)")
    (tmp_path / "config.json").rename(tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "a/b"}')
    assert refused(tmp_path, where="model.path").hint == "model.tokenizer=a/b"


def test_reward_models_are_described(tmp_path: Path) -> None:
    path = folder_of(tmp_path, REWARD_MODEL)
    assert describe_reward_model(path, where="w") == f"{path} (Qwen3ForSequenceClassification)"
    assert describe_reward_model("Skywork/Some-RM", where="w") == "Skywork/Some-RM (hub)"
    own = folder_of(tmp_path, {"architectures": ["InternRewardModel"]})  # of its own code: the weights will tell
    assert describe_reward_model(own, where="w").endswith("(InternRewardModel)")
    assert refused(own, is_reward_model).got == f"{own}: InternRewardModel"


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
    assert str(refused(path, describe_reward_model).got).endswith(got)
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
    assert refused(path, describe_reward_model, conversational=True).got == f"{path}, {base}"
    Path(base, "chat_template.jinja").write_text("{{ messages }}")
    describe_reward_model(path, where="w", conversational=True)
    folder_of(tmp_path / "adapter", adapter | {"task_type": "CAUSAL_LM"}, "adapter_config.json")
    assert refused(path, describe_reward_model).got == f"{path}: task_type CAUSAL_LM"
    assert not is_reward_model(path, where="w")
    folder_of(tmp_path / "adapter", adapter | {"base_model_name_or_path": "/gone"}, "adapter_config.json")
    critic: Any = functools.partial(describe_critic, policy=base, tokenizer=None)
    for describe in (describe_model, describe_reward_model, is_reward_model, critic):
        error = refused(path, describe)
        assert error.where == f"w: the base that {path}/adapter_config.json names"
        assert error.got == "/gone (looked at /gone)"
    for base in ("/gone", None, 7):
        folder_of(tmp_path / "adapter", adapter | {"base_model_name_or_path": base}, "adapter_config.json")
        assert describe_model(path, where="w", needs_model=base != "/gone") == f"{path} (adapter)"
    folder_of(tmp_path / "adapter", adapter | {"base_model_name_or_path": path}, "adapter_config.json")
    assert describe_model(path, where="w") == f"{path} (adapter)"  # the checks of the base's own key will tell


def test_conversations_need_a_chat_template(tmp_path: Path) -> None:
    path = folder_of(tmp_path, REWARD_MODEL)
    error = refused(path, describe_reward_model, conversational=True)
    assert (error.got, "data.prompt" in str(error.advice)) == (path, True)
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "{{ messages }}"}')
    describe_reward_model(path, where="w", conversational=True)


@pytest.mark.parametrize("content", ["{", "[]", '{"a":' * 5000])
@pytest.mark.parametrize("file", ["config.json", "generation_config.json", "model.safetensors.index.json"])
def test_a_file_that_transformers_would_fail_on_is_named(tmp_path: Path, file: str, content: str) -> None:
    folder = folder_of(tmp_path, CAUSAL)
    (tmp_path / file).write_text(content)
    for describe in (describe_model, describe_reward_model):
        assert str(refused(folder, describe).got).startswith(f"{tmp_path / file}: ")


def test_weights_of_another_config_are_refused(tmp_path: Path) -> None:
    """transformers would fill the third layer with random numbers, and only log it."""
    described = describe_model(str(model_copy(tmp_path / "model")), where="w")
    assert described.startswith(str(tmp_path / "model"))
    deeper = model_copy(tmp_path / "deeper", config={"num_hidden_layers": 3})
    assert str(deeper) in str(refused(deeper).got)


@pytest.mark.parametrize(("where", "typed"), [("model.path (command line)", "model.path="), ("--model", "--model ")])
def test_the_model_of_a_run_is_offered(tmp_path: Path, where: str, typed: str) -> None:
    """The newest checkpoint, and rather the model than a checkpoint."""
    run = tmp_path / "runs" / "one"
    for inside in ("snapshots/abc", "checkpoint-9", "checkpoint-10", "checkpoints/checkpoint-2", "model"):
        (run / inside).mkdir(parents=True)
        folder_of(run / inside, CAUSAL)
        assert refused(run, where=where).hint == f"{typed}{run / inside}"
    (run / "model" / "weights").touch()
    assert refused(run / "model" / "weights", where=where).hint == f"{typed}{run / 'model'}", "a file of a model"
    (run / "model" / "empty").mkdir()
    assert refused(run / "model" / "empty", where=where).hint is None


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
    error = refused("org/model", require_model, where="model.path", revision="r1", trust_remote_code=True)
    assert error.got == "We couldn't do it."
    assert hint in f"{error.hint} {error.advice}"


def test_an_architecture_that_transformers_lacks_is_refused_also_in_a_folder(tmp_path: Path) -> None:
    for config in ({"model_type": "unheard"}, {}, {"model_type": "llama", "hidden_size": "wide"}):
        path = folder_of(tmp_path / "model", config)
        error = refused(path, require_model, where="teacher.path", revision=None, trust_remote_code=False)
        assert "transformers" in str(error.expected)
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter/adapter_config.json").write_text(json.dumps({"base_model_name_or_path": path, "r": 2}))
    require_model(str(tmp_path / "adapter"), where="model.path", revision=None, trust_remote_code=False)
    for load in (
        lambda: merged_model(str(tmp_path / "adapter")),
        lambda: PolicyModel(Path(path)),
        lambda: head_names(path),
        lambda: build_critic("policy", path, dtype="auto", dropout=0.0),
        lambda: load_reward_model(folder_of(Path(path), config | {"architectures": REWARD_MODEL["architectures"]})),
    ):
        with pytest.raises(ModelError):
            load()


@pytest.mark.parametrize("is_by_file", [False, True])
def test_models_are_loaded_unsharded_only_inside_the_context(is_by_file: bool) -> None:
    """ZeRO-3 is on by an argument of TrainingArguments, or by accelerate's file, whose plugin has it."""
    zero = Mock(is_zero3=lambda: True)  # what `from_pretrained` reads before it shards
    deepspeed.set_hf_deepspeed_config(zero)
    plugin = SimpleNamespace(dschf=zero) if is_by_file else SimpleNamespace()
    args: Any = SimpleNamespace(deepspeed_plugin=plugin, **({} if is_by_file else {"hf_deepspeed_config": zero}))
    try:
        assert deepspeed.is_deepspeed_zero3_enabled()
        with loading_unsharded(args):
            assert not deepspeed.is_deepspeed_zero3_enabled()
        assert deepspeed.is_deepspeed_zero3_enabled()
    finally:
        deepspeed.unset_hf_deepspeed_config()
