"""A folder is held against what transformers and vLLM look for in it; each of its faults, planted, is found.

vLLM is not installed where these tests run. What it needs of a folder is from its documentation: `architectures` in
config.json (how it picks a model), safetensors, the tokenizer's files, generation_config.json for sampling defaults
(`--generation-config auto` reads it), and no `auto_map` unless it is told to trust code.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file, save_file
from transformers import AutoConfig, AutoTokenizer, GenerationConfig

from rlhf_cli.project.export.exported_folder import clean_configs, export_model, problems_of
from rlhf_cli.project.export.source_model import find_source
from rlhf_cli.runs.run_folder import read_json
from tests.project.export.finished_runs import finished_run, random_model


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy as it is given away."""
    place = tmp_path_factory.mktemp("made")
    source = find_source(finished_run(place / "run", random_model("CAUSAL_LM")), step=None, critic=False, trust=False)
    return export_model(source, place / "out", lambda message: None).folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A copy of it to spoil."""
    for file in made.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def change(name: str, **keys: Any) -> Callable[[Path], None]:
    def call(folder: Path) -> None:
        content = read_json(folder / name) | keys
        (folder / name).write_text(json.dumps({key: value for key, value in content.items() if value is not None}))

    return call


def left_lora(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    name = next(iter(tensors))
    save_file({**tensors, "base_model.model.x.lora_A.weight": tensors[name]}, folder / "model.safetensors")


def lost_tensor(folder: Path) -> None:
    index = {"weight_map": {"model.embed_tokens.weight": "a", "model.layers.9.x": "a"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def without(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def test_what_is_given_away_has_no_problem(made: Path) -> None:
    assert problems_of(made, "policy") == []
    config = read_json(made / "config.json")
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert not set(config) & {"auto_map", "_name_or_path"}


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (change("config.json", architectures=["LlamaForSequenceClassification"]), "no architecture of a policy"),
        (change("config.json", model_type=None), "no model_type"),
        (change("config.json", auto_map={"AutoModel": "mine.Model"}), "code of its own"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"\x00" * 9), "no safetensors"),
        (left_lora, "parts of an adapter"),
        (lost_tensor, "1 tensors are in no file, model.layers.9.x"),
        (without("tokenizer.json"), "no tokenizer.json"),
        (without("generation_config.json"), "no generation_config.json"),
    ],
)
def test_a_planted_fault_is_found(spoil: Callable[[Path], None], said: str, folder: Path) -> None:
    spoil(folder)
    (problem,) = problems_of(folder, "policy")
    assert said in problem


def test_a_reward_model_has_one_label(folder: Path) -> None:
    change("config.json", architectures=["LlamaForSequenceClassification"], id2label={"0": "a", "1": "b"})(folder)
    assert any("one label" in problem for problem in problems_of(folder, "reward model"))


def test_generating_uses_the_cache_and_ends_where_the_model_does(made: Path) -> None:
    """The run's config has use_cache false, of gradient checkpointing; 0 and 1 are the tokenizer's pad and eos."""
    assert AutoConfig.from_pretrained(made).use_cache is True
    generation = GenerationConfig.from_pretrained(made)
    assert (generation.eos_token_id, generation.pad_token_id) == (1, 0)
    tokenizer = AutoTokenizer.from_pretrained(made)
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 0)
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "1+2="}], tokenize=False)
    assert "1+2=" in chat


def test_a_generation_config_is_made_where_there_is_none(folder: Path) -> None:
    (folder / "generation_config.json").unlink()
    clean_configs(folder, "policy")
    assert read_json(folder / "generation_config.json") == {"eos_token_id": 1, "pad_token_id": 0}
    clean_configs(folder, "reward model")
    assert not (folder / "generation_config.json").exists()
