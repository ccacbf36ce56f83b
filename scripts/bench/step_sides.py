"""Measure one step of GRPO or RLOO with generation on two sides: TRL's own trainer, and ours as `rlhf train` builds it.

Both have the same weights, prompts and settings, and sample answers whose lengths are drawn in advance. A first step
with answers of four tokens warms up and is not counted. The learning rate is 0, so the second step begins with the
starting weights, too. The process ends after the second step.
"""

from __future__ import annotations

import json
import os
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaForCausalLM, LogitsProcessorList, Trainer, TrainerCallback
from transformers.models.llama.modeling_llama import LlamaModel
from transformers.utils import logging

from rlhf_cli.models import live_generation
from scripts.bench.step_models import EOS, EndsInTime

PRETENDED = "pretend"
"""The device of tests/device/pretended_device.py. It has no memory of its own, so its peak is 0."""
_SHORT = 4
"""Tokens of an answer in the warm-up step."""


@dataclass(frozen=True)
class Step:
    """The training of both sides. `folder` has prompts.jsonl, and policy/ unless `model` names another folder.

    lengths: one per answer. end: the token that ends an answer; with None the model decides, up to `limit` tokens.
    lora: train an adapter of rank 16 on all linear layers.
    """

    folder: str
    trainer: str
    lengths: list[int]
    group: int = 8
    micro_batch: int = 8
    limit: int = 128
    beta: float = 0.05
    device: str = "cpu"
    words: tuple[str, ...] = ()
    model: str = ""
    end: int | None = EOS
    lora: bool = False

    @property
    def policy(self) -> str:
        """Return the folder of the model that learns."""
        return self.model or f"{self.folder}/policy"

    @property
    def on_gpu(self) -> bool:
        """Return whether this is a real GPU; the pretended device computes on the CPU."""
        return self.device == "cuda"

    def settings(self) -> dict[str, Any]:
        """Return the arguments of the trainer, ours and TRL's."""
        return {
            "beta": self.beta,
            "num_generations": self.group,
            "per_device_train_batch_size": self.micro_batch,
            "gradient_accumulation_steps": len(self.lengths) // self.micro_batch,
            "max_completion_length": self.limit,
            "max_steps": 3,
            "max_grad_norm": 1e9,
            "learning_rate": 0.0,
            "temperature": 1.0,
            "gradient_checkpointing": False,
            "logging_steps": 1,
            "save_strategy": "no",
            "log_completions": True,
            "num_completions_to_print": 0,
            "seed": 0,
            **({"dataloader_pin_memory": False} if self.device == PRETENDED else {}),
        }


def by_length(completions: list[Any], **_: object) -> list[float]:
    """Score an answer by its length and characters, so that few answers of a group get the same score."""
    texts = [text if isinstance(text, str) else text[-1]["content"] for text in completions]
    return [len(text.split()) / 10 + sum(map(ord, text)) % 5 for text in texts]


@dataclass
class Taken:
    """Costs of the second step, in CPU seconds or on a GPU in wall seconds, and in units of 2^20 bytes.

    slots: positions in training passes of the policy; tokens: those without padding (None for packed rows);
    check: a sum that is equal for equal answers; phases: seconds by phase.
    """

    step_s: float = 0.0
    generation_s: float = 0.0
    peak_mb: float = 0.0
    slots: int = 0
    tokens: int = 0
    answer_tokens: int = 0
    check: int = 0
    phases: dict[str, float] = field(default_factory=dict)
    began_s: float = 0.0

    def add(self, phase: str, seconds: float) -> None:
        """Add seconds to a phase."""
        self.phases[phase] = self.phases.get(phase, 0.0) + seconds


class StepClock(TrainerCallback):
    """Measure from the start of the second step to the start of the third, with logging, then end the process.

    If `gradient_file` is given, write the gradient of the second step there; writing is not counted.
    """

    def __init__(self, out: Path, step: Step, gradient_file: Path | None) -> None:
        self.taken, self._out, self._gradient_file, self._step = Taken(), out, gradient_file, step
        self._left_out_s = 0.0
        self._number = 0

    def now_s(self) -> float:
        """Return CPU seconds, or on a GPU wall seconds after its work is done."""
        if not self._step.on_gpu:
            return time.process_time()
        torch.cuda.synchronize()
        return time.perf_counter()

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self._number += 1
        if self._number == 2:
            if self._step.on_gpu:
                torch.cuda.reset_peak_memory_stats()
            self.taken = Taken(began_s=self.now_s())
        elif self._number == 3:
            self.taken.step_s = self.now_s() - self.taken.began_s - self._left_out_s
            if self._step.on_gpu:
                self.taken.peak_mb = torch.cuda.max_memory_allocated() / 2**20
            elif self._step.device == "cpu":
                self.taken.peak_mb = int(_status().partition("VmHWM:")[2].split()[0]) / 1024
            self._out.write_text(json.dumps(vars(self.taken)))
            os._exit(0)  # skip saving and clean-up on both sides

    def timed(self, call: Callable[..., Any], phase: Callable[[], str]) -> Callable[..., Any]:
        """Return a function that adds its seconds to a phase; `phase` is evaluated at each call."""

        def timed(*given: Any, **named: Any) -> Any:
            name, began = phase(), self.now_s()
            found = call(*given, **named)
            self.taken.add(name, self.now_s() - began)
            return found

        return timed

    def on_pre_optimizer_step(self, *_: Any, model: Any, **__: Any) -> None:
        if self._number != 2 or self._gradient_file is None:
            return
        began = self.now_s()
        learned = [weight.grad for weight in model.parameters() if weight.grad is not None]  # frozen weights have none
        torch.save([gradient.cpu() for gradient in learned], self._gradient_file)
        self._left_out_s += self.now_s() - began


def _status() -> str:
    return Path("/proc/self/status").read_text()


def install(clock: StepClock, step: Step) -> None:
    """Patch generation, the forward pass and `train`: fix lengths, count positions, add the clock."""
    live_generation.ROW_BY_ROW = live_generation.ROW_BY_ROW | {EndsInTime}
    generate, forward, train = LlamaForCausalLM.generate, LlamaModel.forward, Trainer.train

    def generated(model: Any, *given: Any, **named: Any) -> Any:
        lengths = torch.tensor(step.lengths if clock._number == 2 else [_SHORT] * len(step.lengths))
        began, width = clock.now_s(), named["input_ids"].shape[1]
        if step.end is not None:
            named["logits_processor"] = LogitsProcessorList([EndsInTime(lengths, width, step.end)])
        found = generate(model, *given, **named)
        clock.taken.generation_s += clock.now_s() - began
        clock.taken.add("generation", clock.now_s() - began)
        answers = found[:, width:].cpu()
        clock.taken.answer_tokens = int((answers != 0).sum())
        clock.taken.check = int((answers * torch.arange(1, answers.numel() + 1).view_as(answers)).sum())
        return found

    def counted(model: Any, input_ids: Tensor | None = None, *given: Any, **named: Any) -> Any:
        if torch.is_grad_enabled() and input_ids is not None:
            clock.taken.slots += input_ids.numel()
            mask = named.get("attention_mask", given[0] if given else None)
            clock.taken.tokens += int(mask.sum()) if isinstance(mask, Tensor) else 0
        return forward(model, input_ids, *given, **named)

    def trained(trainer: Any, *given: Any, **named: Any) -> Any:
        trainer.add_callback(clock)
        assert trainer.accelerator.device.type == step.device
        seam = "_get_per_token_logps_and_entropies"
        setattr(trainer, seam, clock.timed(getattr(trainer, seam), _pass))
        trainer.accelerator.backward = clock.timed(trainer.accelerator.backward, lambda: "backward")
        return train(trainer, *given, **named)

    LlamaForCausalLM.generate = generated  # type: ignore[method-assign]
    LlamaModel.forward = counted  # type: ignore[method-assign, assignment]
    Trainer.train = trained  # type: ignore[method-assign]


def _pass() -> str:
    return "forward" if torch.is_grad_enabled() else "log-probabilities"


def stock(step: Step) -> None:
    """Train with TRL's own trainer."""
    import trl
    from datasets import load_dataset
    from peft import LoraConfig

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    precision = {"use_cpu": step.device == "cpu", "bf16": step.on_gpu}
    dtype = "bfloat16" if step.on_gpu else "float32"
    adapter = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
    args = getattr(trl, f"{step.trainer.upper()}Config")(
        output_dir=f"{step.folder}/out",
        report_to="none",
        disable_tqdm=True,
        model_init_kwargs={"dtype": dtype},
        **precision,
        **step.settings(),
    )
    made = getattr(trl, f"{step.trainer.upper()}Trainer")(
        model=step.policy,
        reward_funcs=[by_length],
        args=args,
        train_dataset=load_dataset("json", data_files=f"{step.folder}/prompts.jsonl", split="train"),
        peft_config=adapter if step.lora else None,
    )
    made.train()


def ours(step: Step) -> None:
    """Train as `rlhf train` does, in this process."""
    from rlhf_cli.cli import main

    said = [f"trainer.args.{name}={value}".replace("=True", "=true").replace("=False", "=false")
            for name, value in step.settings().items() if name != "seed"]  # fmt: skip
    words = [f"trainer={step.trainer}", "model=local", f"model.path={step.policy}", "data=file"]
    words += [f"data.path={step.folder}/prompts.jsonl", "+rewards.score.fn=scripts.bench.step_sides:by_length"]
    words += [
        "track=none",
        f"launch={'cpu' if step.device == 'cpu' else 'auto'}",
        "seed=0",
        f"run.name=run{os.getpid()}",
    ]
    words += ["model.dtype=bfloat16"] if step.on_gpu else []
    words += ["model.lora.r=16", "model.lora.lora_alpha=32"] if step.lora else []
    raise SystemExit(main(["train", *words, *said, *step.words]) or "training ended before its third step")


SIDES: dict[str, Callable[[Step], None]] = {"ours": ours, "stock": stock}


def in_a_fork(side: str, step: Step, gradient_file: Path | None = None) -> Taken:
    """Run one side in a fork of this process and return its costs. Raise SystemExit if it failed."""
    out, said = Path(step.folder, "taken.json"), Path(step.folder, "said.txt")
    out.unlink(missing_ok=True)
    if (child := os.fork()) == 0:
        try:
            stream = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(stream, 1)
            os.dup2(stream, 2)
            os.chdir(step.folder)
            install(StepClock(out, step, gradient_file), step)
            SIDES[side](step)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    os.waitpid(child, 0)
    if not out.exists():
        raise SystemExit(f"{side} failed:\n{said.read_text()}")
    return read_taken(out)


def read_taken(out: Path) -> Taken:
    """Return the costs that a clock wrote."""
    return Taken(**json.loads(out.read_text()))
