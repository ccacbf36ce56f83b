"""A TRL trainer on a tiny policy and a few prompts, trained for some steps with the gradient of every one kept."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import trl
from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import PreTrainedTokenizerFast, TrainerCallback

from rlhf_cli.trainers.extensions import Extensions

PAD, EOS = 0, 1
LONGEST = 12
SETTINGS: dict[str, Any] = {
    **{"use_cpu": True, "report_to": "none", "save_strategy": "no", "disable_tqdm": True, "logging_steps": 1},
    **{"bf16": False, "model_init_kwargs": {"dtype": "auto"}, "gradient_checkpointing": False},
    **{"num_generations": 4, "per_device_train_batch_size": 4, "max_completion_length": LONGEST},
    "max_grad_norm": 1e9,  # clipped, a gradient that is too large by a factor would be right
    **{"learning_rate": 1e-3, "optim": "sgd"},
}


def tokenizer(vocabulary: int) -> PreTrainedTokenizerFast:
    """One word, one token."""
    names = {"<pad>": PAD, "<eos>": EOS} | {f"w{number}": number for number in range(2, vocabulary)}
    words = Tokenizer(models.WordLevel(names, unk_token="w2"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", padding_side="left")


def random_prompts(first: int, vocabulary: int, count: int = 8) -> list[list[int]]:
    """Prompts of one to six words from `first` on; the same every time."""
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(1, 7, (count,), generator=generator).tolist()
    return [torch.randint(first, vocabulary, (length,), generator=generator).tolist() for length in lengths]


def by_length(completion_ids: list[list[int]], **_: object) -> list[float]:
    """Longer is better, and all that begin with a high token are alike: some groups have no deviation."""
    return [float(len(ids)) + ids[0] % 5 for ids in completion_ids]


class Grabbed(TrainerCallback):
    """Keeps the gradient of every optimizer step, flat, as float64."""

    def __init__(self) -> None:
        self.gradients: list[Tensor] = []

    def on_pre_optimizer_step(self, *_: Any, model: Any, **__: Any) -> None:
        grads = [one.grad for one in model.parameters() if one.requires_grad]
        self.gradients.append(torch.cat([grad.double().flatten() for grad in grads if grad is not None]))


def trained_on(
    prompts: list[list[int]],
    bases: tuple[type, ...],
    folder: Path,
    *,
    model: Any,
    reward: Any = by_length,
    extensions: Extensions | None = None,
    lora: LoraConfig | None = None,
    prepare: Callable[[Any], None] | None = None,
    **settings: Any,
) -> tuple[list[Tensor], Any]:
    """Train a class of `bases`, TRL's trainer last, and return the gradients of every step and the trainer.

    `prepare` is given the trainer before its first step.
    """
    trl_trainer = bases[-1]
    config = getattr(trl, trl_trainer.__name__.replace("Trainer", "Config"))
    grabbed = Grabbed()
    saved = folder / "policy"  # where TRL finds the reference, too
    model.save_pretrained(saved)
    given: dict[str, Any] = {
        "model": str(saved),
        "reward_funcs": [reward],
        "args": config(output_dir=str(folder), **{**SETTINGS, **settings}),
        "train_dataset": Dataset.from_list([{"prompt": " ".join(f"w{word}" for word in text)} for text in prompts]),
        "processing_class": tokenizer(model.config.vocab_size),
        "callbacks": [grabbed],
        **({"peft_config": copy.deepcopy(lora)} if lora is not None else {}),
    }
    own = {} if extensions is None else {"extensions": extensions}
    made = type(trl_trainer.__name__, bases, own)(**given)
    if prepare is not None:
        prepare(made)
    made.train()
    return grabbed.gradients, made
