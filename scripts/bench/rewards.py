"""What the reward stack costs and saves, as ratios within one run.

usage: rewards.py
"""

from __future__ import annotations

import asyncio
import functools
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import LlamaConfig, LlamaForSequenceClassification, PrinterCallback
from trl import GRPOConfig, GRPOTrainer

from rlhf_cli.models.reward_model_scorer import RewardModelScorer
from rlhf_cli.models.tiny import byte_tokenizer, tiny_model_path
from rlhf_cli.rewards.length import length_ramp
from rlhf_cli.rewards.stack.component import Component
from rlhf_cli.rewards.stack.gates import ScoreGate
from rlhf_cli.rewards.stack.reward_stack import RewardStack
from rlhf_cli.rewards.toy import digits_only, sums_correct
from rlhf_cli.trainers.build_trainer import build_trainer
from rlhf_cli.trainers.extensions import Extensions, RewardSetup

PAIRS = 15
BUILD = {"hidden_size": 64, "num_layers": 2, "num_heads": 4, "context_tokens": 256, "seed": 0, "warm_start": None}


def ratio(
    name: str,
    a: Callable[[], Any],
    b: Callable[[], Any],
    bound: float,
    *,
    pairs: int = PAIRS,
    clock: Callable[[], float] = time.process_time,
) -> None:
    """Time a and b in turn and print the median of a/b: CPU seconds, for what others do on the machine is not ours."""
    a(), b()
    ratios = []
    for _ in range(pairs):
        took = [_seconds(one, clock) for one in (a, b)]
        ratios.append(took[0] / took[1])
    median = statistics.median(ratios)
    print(f"{name:<66}{median:>7.2f}  ({min(ratios):.2f}-{max(ratios):.2f})  wanted <= {bound:.2f}")


def _seconds(function: Callable[[], Any], clock: Callable[[], float]) -> float:
    began = clock()
    function()
    return clock() - began


async def waits(completions: list[str], **_: Any) -> list[float]:
    await asyncio.sleep(0.02)
    return [0.0] * len(completions)


def first_fifth(completions: list[str], **_: Any) -> list[float]:
    return [float(row % 5 == 0) for row in range(len(completions))]


def stack_of(*components: Component) -> Callable[[dict[str, Any]], Any]:
    stack = RewardStack(components)
    return lambda batch: stack.evaluate(**batch)


def batch_of(num_rows: int) -> dict[str, Any]:
    rows = [(row % 20, (7 * row) % 20) for row in range(num_rows)]
    return {
        "prompts": [f"{a}+{b}=" for a, b in rows],
        "completions": [str(a + b + row % 2) for row, (a, b) in enumerate(rows)],
        "completion_ids": [[1] * 3 for _ in rows],
        "a": [a for a, _ in rows],
        "b": [b for _, b in rows],
    }


def waiting() -> None:
    batch = batch_of(64)
    four = stack_of(*(Component(f"r{number}", waits) for number in range(4)))
    one = stack_of(Component("r0", waits))
    ratio(
        "four rewards of 20 ms / one of them (one after another: 4)",
        lambda: four(batch),
        lambda: one(batch),
        1.3,
        clock=time.perf_counter,
    )


def gating(folder: Path) -> None:
    shape = {"hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 4}
    config = LlamaConfig(vocab_size=258, num_labels=1, pad_token_id=0, eos_token_id=1, bos_token_id=None, **shape)
    LlamaForSequenceClassification(config).save_pretrained(folder)
    byte_tokenizer(512).save_pretrained(folder)
    scorer = RewardModelScorer(str(folder), batch_size=16)
    batch = batch_of(160)
    batch["prompts"] = ["a longer prompt than a sum " * 4 + prompt for prompt in batch["prompts"]]
    gate = Component("gate", first_fifth)
    gated = stack_of(gate, Component("model", scorer, gates=(ScoreGate("gate", low=1.0),)))
    ungated = stack_of(gate, Component("model", scorer))
    ratio(
        "a gate that closes 80 % before a reward model / without it",
        lambda: gated(batch),
        lambda: ungated(batch),
        0.25,
        pairs=7,
    )


def stack_against_trl(folder: Path) -> None:
    """`_calculate_rewards` of a trainer with the stack against that of TRL's own, 1024 rows, 4 functions."""
    brevity = functools.partial(length_ramp, full=2, zero=16, unit="characters")
    functions = {"correct": sums_correct, "format": digits_only, "short": brevity, "also": digits_only}
    batch = batch_of(1024)
    inputs = [{"prompt": batch["prompts"][row], "a": batch["a"][row], "b": batch["b"][row]} for row in range(1024)]
    given = (inputs, batch["prompts"], batch["completions"], batch["completion_ids"])
    plain = trainer(GRPOTrainer, list(functions.values()), folder)
    stack = RewardStack([Component(name, function) for name, function in functions.items()])
    ours = trainer(with_stack_of(stack), stack.columns(), folder)

    def with_stack() -> None:
        ours._calculate_rewards(*given)
        ours._pending_extra_logs.clear()

    ratio("the stack / TRL's own, 1024 rows, 4 functions", with_stack, lambda: plain._calculate_rewards(*given), 1.1)


def halves(completions: list[str], **_: Any) -> list[Any]:
    """Two spans a row: the worst case for laying rewards on tokens is that every row is dense."""
    return [
        [(0, len(text) // 2, 1.0), (len(text) // 2, len(text), -0.5)] if len(text) > 1 else 0.0 for text in completions
    ]


def lengths(completions: list[str], **_: Any) -> list[float]:
    return [float(len(text)) for text in completions]


def dense_step(folder: Path) -> None:
    """Whole training steps with spans and per-token advantages against steps with one number a row."""

    def steps(score: Callable[..., Any], *, is_dense: bool) -> Callable[[], Any]:
        stack = RewardStack([Component("reward", score, spread="even")])
        ours = trainer(with_stack_of(stack, is_dense=is_dense), stack.columns(), folder, max_steps=6)
        return lambda: ours.train()

    dense, scalar = steps(halves, is_dense=True), steps(lengths, is_dense=False)
    ratio("a step with dense rewards / with one number a row", dense, scalar, 1.05, pairs=9)


def with_stack_of(stack: RewardStack, *, is_dense: bool = False) -> Callable[..., Any]:
    """Return what makes GRPOTrainer with the stack mixed in."""
    extensions = Extensions(rewards=RewardSetup(stack=stack, is_dense=is_dense))
    return functools.partial(build_trainer, GRPOTrainer, extensions)


def trainer(kind: Callable[..., Any], functions: list[Any], folder: Path, max_steps: int = 1) -> Any:
    rows = [{"prompt": "A and B:", "speaker_a": "A", "speaker_b": "B"}] * 64
    args = GRPOConfig(
        output_dir=str(folder / "out"),
        report_to="none",
        use_cpu=True,
        bf16=False,
        disable_tqdm=True,
        save_strategy="no",
        logging_strategy="no",
        per_device_train_batch_size=64,
        num_generations=8,
        max_completion_length=24,
        max_steps=max_steps,
        gradient_checkpointing=False,
    )
    model = str(tiny_model_path(BUILD, list, lambda step, steps: None))
    made = kind(model=model, reward_funcs=functions, args=args, train_dataset=Dataset.from_list(rows))
    made.remove_callback(PrinterCallback)
    return made


if __name__ == "__main__":
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as temporary:
        waiting()
        gating(Path(temporary, "rm"))
        stack_against_trl(Path(temporary))
        dense_step(Path(temporary))
