"""Some steps of a TRL trainer, and of ours over it, from the same given rollouts: gradients and metrics to compare."""

from __future__ import annotations

import contextlib
import copy
from pathlib import Path
from typing import Any

import torch
import trl
from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TrainerCallback

from rlhf_cli.rewards.stack.reward_stack import RewardStack
from rlhf_cli.tables.passes import PassSetting
from rlhf_cli.trainers.extensions import Extensions, RewardSetup
from rlhf_cli.trainers.pass_mixin import PassMixin
from tests.support.float64 import all_in_float64, no_float32

PAD, EOS, VOCABULARY = 0, 1, 64
LONGEST = 12
SETTINGS: dict[str, Any] = {
    **{"use_cpu": True, "report_to": "none", "save_strategy": "no", "disable_tqdm": True, "logging_steps": 1},
    **{"bf16": False, "model_init_kwargs": {"dtype": "auto"}, "gradient_checkpointing": False},
    **{"num_generations": 4, "per_device_train_batch_size": 4, "max_completion_length": LONGEST},
    "max_grad_norm": 1e9,  # clipped, a gradient that is too large by a factor would be right
    **{"learning_rate": 1e-3, "optim": "sgd", "gradient_accumulation_steps": 4, "max_steps": 1},
}


def policy(**settings: Any) -> LlamaForCausalLM:
    """A tiny Llama whose attention matters: with the usual small weights every row would look alike."""
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    given = {"num_key_value_heads": 2, "initializer_range": 0.15, "pad_token_id": PAD, "eos_token_id": EOS}
    return LlamaForCausalLM(LlamaConfig(**{"vocab_size": VOCABULARY, **shape, **given, **settings}))


def tokenizer() -> PreTrainedTokenizerFast:
    """One word, one token."""
    names = {"<pad>": PAD, "<eos>": EOS} | {f"w{number}": number for number in range(2, VOCABULARY)}
    words = Tokenizer(models.WordLevel(names, unk_token="w2"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", padding_side="left")


def prompts() -> list[str]:
    """Eight prompts of one to six words, two of them alike but for the last word; the same every time."""
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(1, 7, (8,), generator=generator).tolist()
    texts = [torch.randint(2, VOCABULARY, (length,), generator=generator).tolist() for length in lengths]
    texts[1] = [*texts[0][:-1], 3]
    return [" ".join(f"w{word}" for word in text) for text in texts]


def by_length(completion_ids: list[list[int]], **_: object) -> list[float]:
    """Longer is better, and all that begin with a high token are alike: some groups have no deviation."""
    return [float(len(ids)) + ids[0] % 5 for ids in completion_ids]


class Given:
    """Mixed into a TRL trainer, it answers without a model: the n-th answer is always the same."""

    _answers: torch.Generator

    def _generate_single_turn(self, prompt_ids: list[Any], *_: Any, **__: Any) -> Any:
        if not hasattr(self, "_answers"):
            self._answers = torch.Generator().manual_seed(2)
        answers = []
        for _one in prompt_ids:
            length = int(torch.randint(1, LONGEST + 1, (), generator=self._answers))
            ids = torch.randint(2, VOCABULARY, (length,), generator=self._answers).tolist()
            answers.append([*ids[:-1], EOS] if length < LONGEST else ids)
        return answers if isinstance(self, trl.RLOOTrainer) else (answers, None)


class Grabbed(TrainerCallback):
    """Keeps the gradient of every optimizer step, flat, as float64."""

    def __init__(self) -> None:
        self.gradients: list[Tensor] = []

    def on_pre_optimizer_step(self, *_: Any, model: Any, **__: Any) -> None:
        grads = [one.grad for one in model.parameters() if one.requires_grad]
        self.gradients.append(torch.cat([grad.double().flatten() for grad in grads if grad is not None]))


def trained(
    folder: Path,
    passes: PassSetting | None,
    *,
    trainer: str = "GRPO",
    model: Any = None,
    mixed: tuple[type, ...] = (),
    dtype: torch.dtype = torch.float32,
    reward: Any = by_length,
    lora: LoraConfig | None = None,
    **settings: Any,
) -> tuple[list[Tensor], Any]:
    """Return the gradients of every step and the trainer; `passes` None runs TRL's trainer without our mixins."""
    trl_trainer, config = getattr(trl, f"{trainer}Trainer"), getattr(trl, f"{trainer}Config")
    grabbed = Grabbed()
    saved = folder / "policy"  # where TRL finds the reference, too
    (model if model is not None else policy()).to(dtype).save_pretrained(saved)
    given: dict[str, Any] = {
        "model": str(saved),
        "reward_funcs": [reward],
        "args": config(output_dir=str(folder), **{**SETTINGS, **settings}),
        "train_dataset": Dataset.from_dict({"prompt": prompts()}),
        "processing_class": tokenizer(),
        "callbacks": [grabbed],
        **({"peft_config": copy.deepcopy(lora)} if lora is not None else {}),
    }
    ours = () if passes is None else (PassMixin,)
    own = {} if passes is None else {"extensions": Extensions(rewards=RewardSetup(RewardStack([]), passes=passes))}
    is_exact = dtype is torch.float64
    with no_float32() if is_exact else contextlib.nullcontext():
        made: Any = type(trl_trainer.__name__, (Given, *ours, *mixed, trl_trainer), own)(**given)
        if is_exact:
            all_in_float64(made)
        made.train()
    return grabbed.gradients, made
