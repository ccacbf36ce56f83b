"""An exported model loads alone and generates with the cache; incomplete weights are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import AutoConfig, AutoTokenizer, GenerationConfig

from rlhf_cli.errors import ModelError
from rlhf_cli.project.exported_folder import clean_configs, export_model, find_source
from rlhf_cli.runs.run_folder import RunFolder, read_json
from tests.project.finished_runs import finished_run, random_model


def given(run: RunFolder, place: Path) -> Path:
    source = find_source(run, step=None, trust=False)
    return export_model(source, place / "out", lambda message: None).folder


def test_generation_uses_the_cache_and_the_right_end_token(tmp_path: Path) -> None:
    """The run's config has use_cache false; 0 and 1 are the tokenizer's pad and eos."""
    made = given(finished_run(tmp_path / "run", random_model("CAUSAL_LM")), tmp_path)
    config = read_json(made / "config.json")
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert not set(config) & {"auto_map", "_name_or_path"}
    assert AutoConfig.from_pretrained(made).use_cache is True
    generation = GenerationConfig.from_pretrained(made)
    assert (generation.eos_token_id, generation.pad_token_id) == (1, 0)
    tokenizer = AutoTokenizer.from_pretrained(made)
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 0)
    assert "1+2=" in tokenizer.apply_chat_template([{"role": "user", "content": "1+2="}], tokenize=False)
    (made / "generation_config.json").unlink()
    clean_configs(made, "policy")
    assert read_json(made / "generation_config.json") == {"eos_token_id": 1, "pad_token_id": 0}
    clean_configs(made, "reward model")
    assert not (made / "generation_config.json").exists()


def test_missing_or_cut_weights_are_refused(tmp_path: Path) -> None:
    run = finished_run(tmp_path / "run", random_model("CAUSAL_LM"))
    index = {"weight_map": {"model.embed_tokens.weight": "a", "model.layers.9.x": "a"}}
    (run.model / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match="incomplete") as refused:
        given(run, tmp_path)
    assert refused.value.got == "no file holds model.layers.9.x"
    (run.model / "model.safetensors").write_bytes(b"\x00" * 9)
    with pytest.raises(ModelError, match="incomplete") as refused:
        given(run, tmp_path)
    assert refused.value.got == "no safetensors that can be read"
