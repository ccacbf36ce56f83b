"""TRL's trainers on a tiny policy that ends its answers at different places, alone and with generation of ours."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
import trl
from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import PreTrainedTokenizerFast, TrainerCallback

from rlhf_cli.stack.reward_stack import RewardStack
from rlhf_cli.tables.generation_modes import GenerationSetting
from rlhf_cli.trainers.additions import Additions, BuiltWhole, RewardParts
from rlhf_cli.trainers.generation.live_generation import LiveGeneration
from tests.support.tiny_decoders import ENDS, VOCABULARY, model_of

LONGEST = 12


def tokenizer() -> PreTrainedTokenizerFast:
    """One word, one token."""
    names = {"<pad>": 0, "<eos>": 1} | {f"w{number}": number for number in range(2, VOCABULARY)}
    words = Tokenizer(models.WordLevel(names, unk_token="w2"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", padding_side="left")


class Steps(TrainerCallback):
    """Keeps the gradient of every optimizer step, flat, as float64."""

    def __init__(self) -> None:
        self.gradients: list[Tensor] = []

    def on_pre_optimizer_step(self, *_: Any, model: Any, **__: Any) -> None:
        grads = [one.grad for one in model.parameters() if one.requires_grad]
        self.gradients.append(torch.cat([grad.double().flatten() for grad in grads if grad is not None]))


class Counted:
    """Mixed in directly above TRL, it counts the passes without a gradient, and keeps what was sampled."""

    passes: int = 0

    def _get_per_token_logps_and_entropies(self, *args: Any, **named: Any) -> Any:
        self.passes += not torch.is_grad_enabled()
        return super()._get_per_token_logps_and_entropies(*args, **named)  # type: ignore[misc]

    def _generate_single_turn(self, *args: Any, **named: Any) -> Any:
        generated = super()._generate_single_turn(*args, **named)  # type: ignore[misc]
        ids = generated if isinstance(self, trl.RLOOTrainer) else generated[0]
        self.sampled = [*getattr(self, "sampled", []), *ids]
        return generated


def by_length(completion_ids: list[list[int]], **_: object) -> list[float]:
    return [float(len(ids)) + ids[0] % 5 for ids in completion_ids]


def trained(
    folder: Path,
    generation: GenerationSetting | None,
    *,
    trainer: str = "GRPO",
    lora: LoraConfig | None = None,
    model: Any = None,
    **settings: Any,
) -> tuple[list[Tensor], Any]:
    """Return the gradients of every step and the trainer; `generation` None is TRL's trainer with nothing of ours."""
    trl_trainer = getattr(trl, f"{trainer}Trainer")
    args = getattr(trl, f"{trainer}Config")(
        output_dir=str(folder),
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        logging_steps=1,
        **{
            "bf16": False,
            "model_init_kwargs": {"dtype": "auto"},
            "gradient_checkpointing": False,
            "num_generations": 4,
            "per_device_train_batch_size": 4,
            "gradient_accumulation_steps": 1,
            "steps_per_generation": 2,
            "max_completion_length": LONGEST,
            "max_steps": 4,
            "max_grad_norm": 1e9,  # clipped, a gradient that is too large by a factor would be right
            "learning_rate": 1e-3,
            "optim": "sgd",
            **settings,
        },
    )
    saved = folder / "policy"
    policy = model if model is not None else model_of("llama")
    policy.generation_config.eos_token_id = ENDS
    policy.save_pretrained(saved)
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(1, 7, (8,), generator=generator).tolist()
    texts = [torch.randint(8, VOCABULARY, (length,), generator=generator).tolist() for length in lengths]
    steps = Steps()
    given: dict[str, Any] = {
        "model": str(saved),
        "reward_funcs": [by_length],
        "args": args,
        "train_dataset": Dataset.from_list([{"prompt": " ".join(f"w{word}" for word in text)} for text in texts]),
        "processing_class": tokenizer(),
        "callbacks": [steps],
        **({"peft_config": copy.deepcopy(lora)} if lora is not None else {}),
    }
    bases: tuple[type, ...] = (Counted, trl_trainer)
    if generation is not None:
        bases = (BuiltWhole, LiveGeneration, Counted, trl_trainer)
        given["additions"] = Additions(rewards=RewardParts(stack=RewardStack([]), generation=generation))
    made = type(trl_trainer.__name__, bases, {})(**given)
    made.train()
    return steps.gradients, made


def distance(found: list[Tensor], expected: list[Tensor]) -> float:
    """Return the largest norm of a difference of gradients over the norm of the one that is right."""
    pairs = zip(found, expected, strict=True)
    return max(float((ours - theirs).norm() / theirs.norm()) for ours, theirs in pairs)
