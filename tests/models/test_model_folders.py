"""What is and what is not a model, said before anything is loaded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlhf_cli.errors import ModelError
from rlhf_cli.models.model_folders import describe_model, describe_reward_model


@pytest.mark.parametrize("path", ["./nowhere", "/no/such/folder", "a/b/c"])
def test_no_such_folder(path: str) -> None:
    with pytest.raises(ModelError, match="no such model folder") as caught:
        describe_model(path, where="model.path (command line)")
    assert "model.path (command line)" in str(caught.value)


def test_a_model_without_a_tokenizer_wants_one_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    with pytest.raises(ModelError, match="no tokenizer") as caught:
        describe_model(str(tmp_path), where="model.path")
    assert "model.tokenizer=" in str(caught.value)
    assert describe_model(str(tmp_path), where="model.path", needs_tokenizer=False).endswith("(LlamaForCausalLM)")


def folder_of(folder: Path, config: dict[str, object], file: str = "config.json") -> str:
    folder.mkdir(exist_ok=True)
    (folder / file).write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text("{}")
    return str(folder)


REWARD_MODEL = {"architectures": ["Qwen3ForSequenceClassification"], "id2label": {"0": "LABEL_0"}}
CAUSAL = {"architectures": ["Qwen3ForCausalLM"]}


def test_reward_models_are_described(tmp_path: Path) -> None:
    path = folder_of(tmp_path, REWARD_MODEL)
    assert describe_reward_model(path, where="w") == f"{path} (Qwen3ForSequenceClassification)"
    assert describe_reward_model("Skywork/Some-RM", where="w") == "Skywork/Some-RM (hub)"
    own = folder_of(tmp_path, {"architectures": ["InternRewardModel"]})  # of its own code: the weights will tell
    assert describe_reward_model(own, where="w").endswith("(InternRewardModel)")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (CAUSAL, "causal checkpoint, a language model, not a reward model"),
        ({"architectures": ["GPT2LMHeadModel"]}, "causal checkpoint"),
        (REWARD_MODEL | {"id2label": {"0": "no", "1": "maybe", "2": "yes"}}, "3 labels; a reward model has one"),
        ({"architectures": ["BertForSequenceClassification"]}, "2 labels; a reward model has one"),
        ({"architectures": ["BertForSequenceClassification"], "num_labels": 5}, "5 labels"),
    ],
)
def test_what_is_no_reward_model_is_refused_without_loading_it(tmp_path: Path, config, message: str) -> None:
    path = folder_of(tmp_path, config)
    with pytest.raises(ModelError, match=message) as caught:
        describe_reward_model(path, where="rewards.judge.model")
    assert "rewards.judge.model" in str(caught.value)
    assert "sequence-classification checkpoint with num_labels 1" in str(caught.value)
    describe_model(path, where="model.path")  # a model it is


def test_an_adapter_names_its_base(tmp_path: Path) -> None:
    base = folder_of(tmp_path / "base", CAUSAL)
    adapter = {"base_model_name_or_path": base, "task_type": "SEQ_CLS"}
    path = folder_of(tmp_path / "adapter", adapter, "adapter_config.json")
    assert describe_reward_model(path, where="w") == f"{path} (adapter of {base})"
    folder_of(tmp_path / "adapter", adapter | {"task_type": "CAUSAL_LM"}, "adapter_config.json")
    with pytest.raises(ModelError, match="adapter of a causal language model"):
        describe_reward_model(path, where="w")
    folder_of(tmp_path / "adapter", adapter | {"base_model_name_or_path": "/gone"}, "adapter_config.json")
    with pytest.raises(ModelError, match="no such model folder") as caught:
        describe_reward_model(path, where="w")
    assert "/gone" in str(caught.value)


def test_conversations_want_a_chat_template(tmp_path: Path) -> None:
    path = folder_of(tmp_path, REWARD_MODEL)
    with pytest.raises(ModelError, match="no chat template"):
        describe_reward_model(path, where="w", conversational=True)
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "{{ messages }}"}')
    describe_reward_model(path, where="w", conversational=True)
    (tmp_path / "tokenizer_config.json").write_text("{}")
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    describe_reward_model(path, where="w", conversational=True)


def test_a_broken_config_is_named(tmp_path: Path) -> None:
    path = folder_of(tmp_path, REWARD_MODEL)
    for content in ("{", "[]"):
        (tmp_path / "config.json").write_text(content)
        with pytest.raises(ModelError, match=r"config.json is no JSON"):
            describe_reward_model(path, where="w")


@pytest.mark.parametrize("where", ["model.path (command line)", "--model"])
def test_the_model_of_a_run_is_offered(tmp_path: Path, where: str) -> None:
    run = tmp_path / "runs" / "one"
    (run / "checkpoints" / "checkpoint-2").mkdir(parents=True)
    sign = " " if where == "--model" else "="
    for inside in ("checkpoints/checkpoint-2", "model"):
        (run / inside).mkdir(exist_ok=True)
        folder_of(run / inside, CAUSAL)
        with pytest.raises(ModelError, match="no model in it") as caught:
            describe_model(str(run), where=where)
        assert caught.value.hint == f"{where.partition(' ')[0]}{sign}{run / inside}"
