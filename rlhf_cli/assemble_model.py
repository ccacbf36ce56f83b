"""From the model section of an experiment to what a trainer loads it with: precision, quantisation, adapter."""

from __future__ import annotations

from typing import Any

import torch

from rlhf_cli.config.schema import Experiment
from rlhf_cli.models.heads import head_names

_REWARD_TRAINER = "RewardTrainer"


def model_init_kwargs(experiment: Experiment) -> dict[str, Any]:
    """What `from_pretrained` is given; the class it is called of is the trainer's business."""
    model = experiment.model
    given: dict[str, Any] = {"dtype": model.dtype, "revision": model.revision}
    if model.quantize is not None:
        given["quantization_config"] = _quantization(model.quantize)
    return given


def lora_config(experiment: Experiment, path: str) -> Any:
    """peft's LoraConfig for the policy, or for a reward model with its head among what is trained and saved."""
    from peft import LoraConfig

    model = experiment.model
    assert model.lora is not None
    given = model.lora.model_dump()
    if experiment.trainer.trl != _REWARD_TRAINER:
        return LoraConfig(task_type="CAUSAL_LM", **given)
    head = head_names(path, revision=model.revision, trust_remote_code=model.trust_remote_code)
    return LoraConfig(task_type="SEQ_CLS", modules_to_save=head, **given)


def _quantization(bits: str) -> Any:
    """As in QLoRA (arXiv 2305.14314): normal floats of 4 bits, their constants quantised again; or 8-bit integers.

    Heads stay as they are: a new one is trained, and a language model's is where the rounding would show most.
    """
    from transformers import BitsAndBytesConfig

    whole = ["lm_head", "score", "classifier"]
    if bits == "8bit":
        return BitsAndBytesConfig(load_in_8bit=True, llm_int8_skip_modules=whole)
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
        llm_int8_skip_modules=whole,
    )
