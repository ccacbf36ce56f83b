"""Pairs scored a second by `rlhf eval` and by TRL's own RewardTrainer.evaluate: same model, rows, batch and memory.

usage: eval.py [--pairs 2000] [--batch 8] [--turns 3]

TRL batches pairs as they come and pads each batch to its longest side; ours sorts all texts by length, so a batch of
as many texts pads little. Both read plain texts and tokenise within what is timed. TRL ends every text with the
end-of-sequence token, so ours does here. Turn by turn; the accuracies have to be the same. On a CPU seconds are CPU
seconds, for what others do on the machine is not ours.
"""

from __future__ import annotations

import argparse
import random
import resource
import statistics
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset, disable_caching, disable_progress_bars
from transformers import (
    AutoModelForSequenceClassification,
    LlamaConfig,
    LlamaForSequenceClassification,
    PrinterCallback,
)
from trl import RewardConfig, RewardTrainer

from rlhf_cli.measure.reward_model_scores import evaluate_reward_model
from rlhf_cli.measure.scored_pairs import pairs_of
from rlhf_cli.models.reward_model_scorer import RewardModelScorer
from rlhf_cli.models.tiny import byte_tokenizer

_CONTEXT = 1024


def mixed_pairs(count: int) -> list[dict[str, str]]:
    """Log-normal lengths as answers have them: median 124 bytes, one in twenty above 549, at most 900."""
    rng = random.Random(0)

    def text() -> str:
        length = min(900, max(4, round(rng.lognormvariate(4.8, 0.9))))
        return "".join(rng.choices("abcdefghij ", k=length))

    return [{"prompt": text()[:60] + ":", "chosen": text(), "rejected": text()} for _ in range(count)]


def save_model(folder: Path) -> None:
    tokenizer = byte_tokenizer(_CONTEXT)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_labels=1,
        max_position_embeddings=_CONTEXT,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    torch.manual_seed(0)
    LlamaForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=2000)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    disable_caching()
    disable_progress_bars()
    rows = mixed_pairs(options.pairs)
    clock = time.perf_counter if torch.cuda.is_available() else time.process_time
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "model")
        save_model(folder)
        trainer = RewardTrainer(
            model=AutoModelForSequenceClassification.from_pretrained(folder, num_labels=1),
            processing_class=byte_tokenizer(_CONTEXT),
            args=RewardConfig(
                output_dir=name,
                per_device_eval_batch_size=options.batch,
                max_length=None,
                report_to="none",
                use_cpu=device == "cpu",
                bf16=False,
                disable_tqdm=True,
            ),
            train_dataset=Dataset.from_list(rows[:2]),
        )
        trainer.remove_callback(PrinterCallback)
        # As many texts in a batch: TRL's batch of pairs has both sides of each.
        scorer = RewardModelScorer(str(folder), batch_size=2 * options.batch, device=device)

        def theirs() -> float:
            return float(trainer.evaluate(Dataset.from_list(rows))["eval_accuracy"])

        def ours() -> float:
            return evaluate_reward_model(scorer, rows, with_eos=True).accuracy.mean

        scorer(*first_texts(rows))
        took: dict[Any, list[float]] = {theirs: [], ours: []}
        peaks: dict[Any, float] = {}
        accuracies = {}
        for _ in range(options.turns):
            for one in (ours, theirs):  # ours first: the system counts a process's peak, which only rises
                if device == "cuda":
                    torch.cuda.reset_peak_memory_stats()
                began = clock()
                accuracies[one] = one()
                took[one].append(clock() - began)
                peak = (
                    torch.cuda.max_memory_allocated() / 2**20
                    if device == "cuda"
                    else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
                )
                peaks.setdefault(one, peak)
    print(f"{options.pairs} pairs, {options.batch} a batch, {device}, {torch.get_num_threads()} threads")
    for label, one in (("TRL evaluate", theirs), ("rlhf eval", ours)):
        seconds = statistics.median(took[one])
        print(
            f"{label:<14}{options.pairs / seconds:>9.1f} pairs/s   accuracy {accuracies[one]:.4f}"
            f"   peak after its first turn {peaks[one]:.0f} MB"
        )
    ratios = [slow / fast for slow, fast in zip(took[theirs], took[ours], strict=True)]
    print(f"ratio {statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f}), wanted >= 1.50")


def first_texts(rows: list[dict[str, str]]) -> tuple[list[Any], list[Any]]:
    """A few rows to warm up with."""
    pairs = pairs_of(rows[:16])
    return pairs.prompts, pairs.chosen


if __name__ == "__main__":
    main()
