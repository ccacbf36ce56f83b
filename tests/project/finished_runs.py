"""Make run folders with untrained models, in milliseconds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import yaml
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification, PreTrainedModel

from rlhf_cli.models.byte_tokenizer import byte_tokenizer
from rlhf_cli.project.exported_folder import ExportedModel, export_model, find_source
from rlhf_cli.runs.provenance import sha256
from rlhf_cli.runs.run_folder import RunFolder

SIZE: dict[str, Any] = {
    "vocab_size": 258,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": None,
}
CLASSES = {"CAUSAL_LM": LlamaForCausalLM, "SEQ_CLS": LlamaForSequenceClassification}
IDS = torch.tensor([[50, 45, 51, 63, 54, 1], [51, 51, 45, 52, 63, 55]])
"""Two texts of six tokens, without padding."""


def random_model(task: str, *, dtype: torch.dtype = torch.float32, seed: int = 0) -> PreTrainedModel:
    """Return a Llama with a few thousand weights, with `use_cache` off as after gradient checkpointing."""
    torch.manual_seed(seed)
    labels = {} if task == "CAUSAL_LM" else {"num_labels": 1}
    model: PreTrainedModel = CLASSES[task](LlamaConfig(**SIZE, **labels, use_cache=False))
    return model.to(dtype).eval()  # type: ignore[arg-type]


def with_adapter(base: Path, task: str, *, seed: int = 1) -> PeftModel:
    """Return an adapter with random weights on the model in a folder (PEFT starts with B = 0)."""
    heads = ["score"] if task == "SEQ_CLS" else None
    config = LoraConfig(task_type=task, r=4, lora_alpha=12, target_modules="all-linear", modules_to_save=heads)
    labels = {} if task == "CAUSAL_LM" else {"num_labels": 1}
    model = get_peft_model(CLASSES[task].from_pretrained(base, **labels), config)
    torch.manual_seed(seed)
    for name, weight in model.named_parameters():
        if "lora_" in name or "modules_to_save" in name:
            torch.nn.init.normal_(weight, std=0.2)
    return model.eval()


def finished_run(place: Path, trained: PreTrainedModel | PeftModel | None, /, **changes: Any) -> RunFolder:
    """Return a run in `place` that finished at step 3, with its model; `changes` go into the configuration."""
    run = RunFolder(place)
    place.mkdir(parents=True)
    rewards = {
        "correct": {"fn": "rlhf_cli.rewards.toy:sums_correct", "args": {}, "weight": 1.0},
        "brief": {
            "fn": str(place.parent / "rewards.py") + ":brief",
            "args": {"full": 2},
            "weight": 0.25,
            "gate": [{"by": "correct", "at_least": 1.0}, {"by": "correct", "at_most": 2.0}],
        },
    }
    config = {
        "seed": 7,
        "trainer": {"name": "grpo", "trl": "GRPOTrainer", "args": {"learning_rate": 1e-3, "max_steps": 3}},
        "model": {"path": None, "build": {"num_layers": 2, "hidden_size": 16}, "trust_remote_code": False},
        "data": {"path": str(place.parent / "data" / "sums.jsonl"), "eval": {"fraction": 0.1}},
        "rewards": rewards,
        **changes,
    }
    run.config.write_text(yaml.safe_dump(config, sort_keys=False))
    provenance = {
        "command": "rlhf train +exp=mine",
        "cwd": str(place.parent),
        "created_at": "2026-01-31T10:15:00+0000",
        "choices": {"exp": "mine"},
        "seed": 7,
        "versions": {"rlhf": "0.1.0", "torch": "2.13.0", "math-verify": None},
        "git": {"commit": "0123456789abcdef", "dirty": True},
        "host": {"name": "a-machine-of-ours"},
        "sha256": {"config": sha256(run.config), "data": "d" * 64, "rewards.brief": "b" * 64},
        "world_size": 2,
        "mixed_precision": "no",
        "num_train_rows": 360,
    }
    run.provenance.write_text(json.dumps(provenance))
    run.status.write_text(json.dumps({"state": "finished", "step": 3, "max_steps": 3}))
    if trained is not None:
        save(trained, run.model)
    return run


def exported(run: RunFolder, out: Path) -> ExportedModel:
    """Export the model of a finished run."""
    return export_model(find_source(run, step=None, trust=False), out, lambda message: None)


def save(model: PreTrainedModel | PeftModel, folder: Path) -> None:
    """Save a model as a Trainer does, with its tokenizer and a file that must not be published."""
    model.save_pretrained(str(folder))
    byte_tokenizer(context_tokens=64).save_pretrained(str(folder))
    (folder / "training_args.bin").write_bytes(b"/home/user-of-the-test")
