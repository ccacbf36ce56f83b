"""An exported model loads alone and computes the same: compared with unmerged PEFT, and with W + s B A by hand.

Float32 sums of another order differ by about the square root of the number of terms times 6e-8 of the result; the
models here have 32 terms and logits near 1, so 1e-5 is many times that and far below what an adapter adds.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
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

from rlhf_cli.errors import ModelError, RlhfError, RunError
from rlhf_cli.evaluation.targets import find_target
from rlhf_cli.process import this_process
from rlhf_cli.project.exported_folder import SourceModel, clean_configs, find_source
from rlhf_cli.runs.checkpoint_folders import write_manifest
from rlhf_cli.runs.run_folder import RunFolder, read_json, write_json
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


def a_run(place: Path, *, weights: str = "model.safetensors", state: str = "finished", **changes: object) -> RunFolder:
    """Return a run with checkpoints of steps 2 and 3, whose weights are not read."""
    run = finished_run(place, None, **changes)
    for folder in (run.model, run.checkpoints / "checkpoint-2", run.checkpoints / "checkpoint-3"):
        folder.mkdir(parents=True)
        (folder / weights).write_bytes(b"weights")
        (folder / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
        write_manifest(folder)
    run.status.write_text(json.dumps({"state": state, "step": 3}))
    return run


def found(run: RunFolder, *, step: int | None = None, trust: bool = False) -> SourceModel:
    return find_source(run, step=step, trust=trust)


def test_the_end_of_a_finished_run_and_any_checkpoint(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    assert (found(run).folder, found(run).step, found(run).kind) == (run.model, 3, "policy")
    source = found(run, step=2)
    assert (source.folder.name, source.step, source.is_checkpoint) == ("checkpoint-2", 2, True)
    for task, kind in (("CAUSAL_LM", "policy"), ("SEQ_CLS", "reward model")):
        adapter = {"task_type": task, "base_model_name_or_path": "Qwen/Qwen3-0.6B"}
        (run.model / "adapter_config.json").write_text(json.dumps(adapter))
        assert (found(run).kind, found(run).base) == (kind, "Qwen/Qwen3-0.6B")


@pytest.mark.parametrize("state", ["preempted", "created"])
def test_an_unfinished_run_needs_a_checkpoint(state: str, tmp_path: Path) -> None:
    run = a_run(tmp_path / "run", state=state)
    with pytest.raises(RunError, match="has not finished") as refused:
        found(run)
    assert refused.value.got == f"{state} at step 3"
    assert "--checkpoint 3" in str(refused.value.hint)
    assert found(run, step=3).step == 3


def test_a_run_that_is_in_training_is_waited_for(tmp_path: Path) -> None:
    """`rlhf resume` would be refused for it, so the advice of `export` and `eval` is the command that shows the end."""
    run = a_run(tmp_path / "run")
    shutil.rmtree(run.model)
    for state, process, verb in (("running", asdict(this_process()), "status"), ("preempted", {}, "resume")):
        run.status.write_text(json.dumps({"state": state, "step": 3, **process}))
        for refuse in (find_source, lambda run, **_: find_target(run.path)):
            with pytest.raises(RunError) as refused:
                refuse(run, step=None, trust=False)
            assert str(refused.value.hint).startswith(f"rlhf {verb} {run.typed}")


def refusal(run: RunFolder, **asked: object) -> RlhfError:
    with pytest.raises(RlhfError) as refused:
        found(run, **asked)  # type: ignore[arg-type]
    assert refused.value.exit_code == 2
    return refused.value


def test_missing_and_damaged_checkpoints(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    assert refusal(run, step=5).got == "steps 2, 3"
    (run.checkpoints / "checkpoint-2" / "model.safetensors").write_bytes(b"wEights")
    damaged = refusal(run, step=2)
    assert "has changed" in str(damaged.got)
    assert damaged.hint == "--checkpoint 3"
    shutil.rmtree(run.checkpoints)
    assert (refusal(run, step=2).got, refusal(run, step=2).hint) == ("no checkpoints", f"rlhf export {run.typed}")


def test_pieces_of_weights_are_refused(tmp_path: Path) -> None:
    refused = refusal(a_run(tmp_path / "run", weights="__0_0.distcp"))
    assert isinstance(refused, ModelError)
    assert "__0_0.distcp" in str(refused.got)


def test_code_of_the_model_needs_trust(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run", model={"path": "someone/model", "trust_remote_code": True})
    assert "--trust" in str(refusal(run).hint)
    assert found(run, trust=True).trust_remote_code
