"""Model folders are checked before anything is loaded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlhf_cli.errors import ModelError
from rlhf_cli.models.model_folders import describe_model, describe_reward_model


@pytest.mark.parametrize("path", ["./nowhere", "/no/such/folder", "a/b/c"])
def test_no_such_folder(path: str) -> None:
    with pytest.raises(ModelError) as caught:
        describe_model(path, where="model.path (command line)")
    assert caught.value.where == "model.path (command line)"


def test_a_model_without_a_tokenizer_needs_another_one(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    with pytest.raises(ModelError) as caught:
        describe_model(str(tmp_path), where="model.path")
    assert caught.value.hint == "model.tokenizer=FOLDER_OR_HUB_ID"
    assert describe_model(str(tmp_path), where="model.path", needs_tokenizer=False).endswith("(LlamaForCausalLM)")


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


@pytest.mark.parametrize(
    ("config", "got"),
    [
        (CAUSAL, "Qwen3ForCausalLM"),
        ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel"),
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
    base = folder_of(tmp_path / "base", CAUSAL)
    adapter = {"base_model_name_or_path": base, "task_type": "SEQ_CLS"}
    path = folder_of(tmp_path / "adapter", adapter, "adapter_config.json")
    assert describe_reward_model(path, where="w") == f"{path} (adapter of {base})"
    folder_of(tmp_path / "adapter", adapter | {"task_type": "CAUSAL_LM"}, "adapter_config.json")
    assert str(refused(path).got).endswith("CAUSAL_LM")
    folder_of(tmp_path / "adapter", adapter | {"base_model_name_or_path": "/gone"}, "adapter_config.json")
    assert "/gone" in str(refused(path).got)


def test_conversations_need_a_chat_template(tmp_path: Path) -> None:
    path = folder_of(tmp_path, REWARD_MODEL)
    assert refused(path, conversational=True).got == path
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "{{ messages }}"}')
    describe_reward_model(path, where="w", conversational=True)
    (tmp_path / "tokenizer_config.json").write_text("{}")
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    describe_reward_model(path, where="w", conversational=True)


def test_a_broken_config_is_named(tmp_path: Path) -> None:
    path = folder_of(tmp_path, REWARD_MODEL)
    for content in ("{", "[]"):
        (tmp_path / "config.json").write_text(content)
        assert str(refused(path).got).startswith(str(tmp_path / "config.json"))


@pytest.mark.parametrize("where", ["model.path (command line)", "--model"])
def test_the_model_of_a_run_is_offered(tmp_path: Path, where: str) -> None:
    run = tmp_path / "runs" / "one"
    (run / "checkpoints" / "checkpoint-2").mkdir(parents=True)
    sign = " " if where == "--model" else "="
    for inside in ("checkpoints/checkpoint-2", "model"):
        (run / inside).mkdir(exist_ok=True)
        folder_of(run / inside, CAUSAL)
        with pytest.raises(ModelError) as caught:
            describe_model(str(run), where=where)
        assert caught.value.hint == f"{where.partition(' ')[0]}{sign}{run / inside}"
