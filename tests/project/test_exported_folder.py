"""An exported model loads alone and computes the same: compared with unmerged PEFT, and with W + s B A by hand.

Float32 sums of another order differ by about the square root of the number of terms times 6e-8 of the result; the
models here have 32 terms and logits near 1, so 1e-5 is many times that and far below what an adapter adds.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    GenerationConfig,
)

from rlhf_cli.errors import ModelError
from rlhf_cli.project.exported_folder import clean_configs
from rlhf_cli.runs.run_folder import read_json, write_json
from tests.project.finished_runs import IDS, exported, finished_run, random_model, save, with_adapter
from tests.support.tolerances import assert_close

AUTO: dict[str, Any] = {"CAUSAL_LM": AutoModelForCausalLM, "SEQ_CLS": AutoModelForSequenceClassification}
KINDS = {"CAUSAL_LM": "policy", "SEQ_CLS": "reward model"}


@torch.no_grad()
def logits(model: Any) -> torch.Tensor:
    return model(input_ids=IDS, attention_mask=torch.ones_like(IDS)).logits


@pytest.mark.parametrize("task", KINDS)
def test_whole_weights_are_the_same(task: str, tmp_path: Path) -> None:
    model = random_model(task)
    given = exported(finished_run(tmp_path / "run", model), tmp_path / "out")
    assert (given.kind, given.merged) == (KINDS[task], False)
    assert torch.equal(logits(AUTO[task].from_pretrained(tmp_path / "out")), logits(model))


@pytest.mark.parametrize("task", KINDS)
def test_a_merged_adapter_computes_what_it_did_on_its_base(task: str, tmp_path: Path) -> None:
    save(random_model("CAUSAL_LM"), tmp_path / "base")
    adapted = with_adapter(tmp_path / "base", task)
    run = finished_run(tmp_path / "run", adapted)
    given = exported(run, tmp_path / "out")
    loaded = AUTO[task].from_pretrained(tmp_path / "out")
    assert (given.kind, given.merged) == (KINDS[task], True)
    assert_close(logits(loaded), logits(adapted))
    with adapted.disable_adapter():
        assert (logits(loaded) - logits(adapted)).abs().max() > 1e-2  # the adapter has an effect
    assert not list((tmp_path / "out").glob("adapter*"))
    # The folder works without its base, and has its tokenizer if the run has none.
    for file in (*run.model.glob("tokenizer*"), *run.model.glob("*.jinja")):
        file.unlink()
    assert AutoTokenizer.from_pretrained(exported(run, tmp_path / "again").folder).eos_token_id == 1
    (tmp_path / "base").rename(tmp_path / "gone")
    assert torch.equal(logits(AUTO[task].from_pretrained(tmp_path / "out")), logits(loaded))


def test_a_base_in_bfloat16_is_rounded_once(tmp_path: Path) -> None:
    """Compare with the sum in float64, rounded once; a float32 sum rarely rounds the other way."""
    save(random_model("CAUSAL_LM", dtype=torch.bfloat16), tmp_path / "base")
    run = finished_run(tmp_path / "run", with_adapter(tmp_path / "base", "CAUSAL_LM"))
    exported(run, tmp_path / "out")
    name = "model.layers.0.self_attn.q_proj"
    adapter = load_file(run.model / "adapter_model.safetensors")
    a, b = (adapter[f"base_model.model.{name}.lora_{part}.weight"].double() for part in "AB")
    base = load_file(tmp_path / "base" / "model.safetensors")[f"{name}.weight"].double()
    merged = load_file(tmp_path / "out" / "model.safetensors")[f"{name}.weight"]
    assert merged.dtype == torch.bfloat16
    assert (merged != (base + 3 * b @ a).to(torch.bfloat16)).float().mean() < 0.01
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "out").dtype == torch.bfloat16


def test_a_quantised_or_missing_base_is_refused(tmp_path: Path) -> None:
    base = tmp_path / "base"
    save(random_model("CAUSAL_LM"), base)
    run = finished_run(tmp_path / "run", with_adapter(base, "CAUSAL_LM"))
    config = {**read_json(base / "config.json"), "quantization_config": {"quant_method": "gptq"}}
    write_json(base / "config.json", config)
    with pytest.raises(ModelError, match="quantised") as refused:
        exported(run, tmp_path / "out")
    assert "gptq" in str(refused.value.got)
    base.rename(tmp_path / "gone")
    with pytest.raises(ModelError, match="missing"):
        exported(run, tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == {"gone", "run"}


def test_generation_uses_the_cache_and_the_right_end_token(tmp_path: Path) -> None:
    """The run's config has use_cache false; 0 and 1 are the tokenizer's pad and eos."""
    made = exported(finished_run(tmp_path / "run", random_model("CAUSAL_LM")), tmp_path / "out").folder
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

    def refusal(match: str) -> object:
        with pytest.raises(ModelError, match=match) as refused:
            exported(run, tmp_path / "out")
        return refused.value.got

    index = {"weight_map": {"model.embed_tokens.weight": "a", "model.layers.9.x": "a"}}
    (run.model / "model.safetensors.index.json").write_text(json.dumps(index))
    assert refusal("incomplete") == "no file holds model.layers.9.x"
    (run.model / "model.safetensors").write_bytes(b"\x00" * 9)
    assert refusal("incomplete") == "no safetensors that can be read"
    for file in (*run.model.glob("tokenizer*"), *run.model.glob("*.jinja")):
        file.unlink()
    refusal("no tokenizer")
