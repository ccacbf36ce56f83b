"""What one optimizer step costs without generation: stock TRL and ours, given the same tokens, side by side.

usage: passes.py [--pairs 5] [--trainers grpo rloo] [--passes packed trimmed plain] [--equal-lengths] [--memory]

A Llama of 12.6 million random weights and 8,192 tokens, KL coefficient 0.05, 32 answers a step in groups of 8 and
micro-batches of 8, prompts of 8 to 24 tokens, answers log-normal with a mean of 36 of at most 128 tokens. Printed are
CPU seconds of a step (medians of pairs, one thread), token slots that went through the policy in a training pass for
each real token, and how far the gradient is from TRL's: the norm of the difference over its norm.

With --memory each trains in a process of its own instead, and printed is VmHWM less that when everything is imported.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import trl
from datasets import load_dataset
from ppo_models import EOS, make
from torch import Tensor
from transformers import TrainerCallback
from transformers.utils import logging

from rlhf_cli.rewards.stack.reward_stack import RewardStack
from rlhf_cli.trainers.extensions import Extensions, RewardSetup
from rlhf_cli.trainers.pass_mixin import PassMixin

ROWS, GROUP, LONGEST, VOCABULARY = 32, 8, 128, 8192
STEPS = 3
"""Of which the first, with cold caches, is not counted."""


class GivenAnswers:
    """Mixed into a TRL trainer, it answers without a model, with lengths as in `settings`."""

    equal_lengths = False

    def _generate_single_turn(self, prompt_ids: list[Any], *_: Any, **__: Any) -> Any:
        generator = self.__dict__.setdefault("_answers", torch.Generator().manual_seed(2))
        spread = torch.randn(len(prompt_ids), generator=generator) * 0.8 + 3.26
        lengths = spread.exp().round().clamp(1, LONGEST).long().tolist()
        answers = []
        for length in [64] * len(lengths) if self.equal_lengths else lengths:
            ids = torch.randint(2, VOCABULARY, (length,), generator=generator).tolist()
            answers.append(ids if length == LONGEST else [*ids[:-1], EOS])
        return answers if isinstance(self, trl.RLOOTrainer) else (answers, None)


class Clock(TrainerCallback):
    """CPU seconds of every step, and its gradient."""

    def __init__(self) -> None:
        self.cpu_s: list[float] = []
        self.gradients: list[Tensor] = []

    keeps_gradients = True

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self._began = time.process_time()

    def on_pre_optimizer_step(self, *_: Any, model: Any, **__: Any) -> None:
        self.cpu_s.append(time.process_time() - self._began)
        if self.keeps_gradients:
            self.gradients.append(torch.cat([one.grad.flatten() for one in model.parameters()]))


def by_length(completion_ids: list[list[int]], **_: object) -> list[float]:
    """Score an answer by its length and its first token."""
    return [len(ids) / 10 + ids[0] % 5 for ids in completion_ids]


def step(models: Path, trainer: str, passes: str | None, *, equal_lengths: bool) -> tuple[Clock, Any]:
    """Train for STEPS steps; `passes` None is TRL with nothing of ours."""
    kind = getattr(trl, f"{trainer.upper()}Trainer")
    args = getattr(trl, f"{trainer.upper()}Config")(
        output_dir=str(models / "out"),
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        beta=0.05,
        num_generations=GROUP,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=ROWS // 8,
        max_completion_length=LONGEST,
        max_steps=STEPS,
        max_grad_norm=1e9,
        learning_rate=1e-5,
        logging_strategy="no",
        model_init_kwargs={"dtype": "float32"},
    )
    clock = Clock()
    given: dict[str, Any] = {"model": str(models / "policy"), "reward_funcs": [by_length], "args": args}
    given |= {"train_dataset": load_dataset("json", data_files=str(models / "prompts.jsonl"), split="train")}
    bases: tuple[type, ...] = (GivenAnswers, kind)
    own: dict[str, Any] = {"equal_lengths": equal_lengths}
    if passes is not None:
        bases = (GivenAnswers, PassMixin, kind)
        own["extensions"] = Extensions(rewards=RewardSetup(stack=RewardStack([]), passes=passes))  # type: ignore[arg-type]
    made = type(kind.__name__, bases, own)(**given, callbacks=[clock])
    made.train()
    return clock, made


def peak_mb() -> float:
    """Return the most that this process has held since its mark was reset, in MB of 10^6 bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024 / 1e6


def memory_mb(models: Path, trainer: str, passes: str | None, *, equal_lengths: bool) -> float:
    """Return by how much training raises what this process holds, in MB."""
    Clock.keeps_gradients = False
    Path("/proc/self/clear_refs").write_text("5")
    before = peak_mb()
    step(models, trainer, passes, equal_lengths=equal_lengths)
    return peak_mb() - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--trainers", nargs="+", default=["grpo", "rloo"])
    parser.add_argument("--passes", nargs="+", default=["packed", "trimmed", "plain"])
    parser.add_argument("--equal-lengths", action="store_true", help="nothing to gain but shared prompts")
    parser.add_argument("--memory", action="store_true", help="peak memory instead, in processes of their own")
    parser.add_argument("--one", nargs=2, metavar=("MODELS", "PASSES"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    if options.one:
        models, passes = Path(options.one[0]), None if options.one[1] == "stock" else options.one[1]
        held = memory_mb(models, options.trainers[0], passes, equal_lengths=options.equal_lengths)
        print(f"\n{held:.0f}")
        return
    with tempfile.TemporaryDirectory() as temporary:
        models = Path(temporary)
        make(models, vocab=VOCABULARY, end_probability=0.02)
        for trainer in options.trainers:
            if options.memory:
                for passes in ("stock", *options.passes):
                    command = [sys.executable, __file__, "--trainers", trainer, "--one", temporary, passes]
                    command += ["--equal-lengths"] * options.equal_lengths
                    done = subprocess.run(command, capture_output=True, text=True, check=True)
                    print(f"{trainer:<6}{passes:<9}{done.stdout.split()[-1]:>8} MB", flush=True)
                continue
            seconds: dict[str, list[float]] = {}
            off: dict[str, float] = {}
            for _ in range(options.pairs):
                stock, _made = step(models, trainer, None, equal_lengths=options.equal_lengths)
                seconds.setdefault("stock", []).append(statistics.mean(stock.cpu_s[1:]))
                for passes in options.passes:
                    clock, _made = step(models, trainer, passes, equal_lengths=options.equal_lengths)
                    seconds.setdefault(passes, []).append(statistics.mean(clock.cpu_s[1:]))
                    found, expected = clock.gradients[0].double(), stock.gradients[0].double()
                    off[passes] = float((found - expected).norm() / expected.norm())
            for passes in options.passes:
                ratios = [one / other for one, other in zip(seconds[passes], seconds["stock"], strict=True)]
                print(
                    f"{trainer:<6}{passes:<9}{statistics.median(seconds[passes]):>8.2f} CPU s, "
                    f"TRL {statistics.median(seconds['stock']):.2f}; ratio {statistics.median(ratios):.3f} "
                    f"({min(ratios):.3f}-{max(ratios):.3f}), gradient off by {off[passes]:.1e}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
