"""What a whole optimizer step costs, generation included: stock TRL's trainer and ours, side by side, turn by turn.

    OMP_NUM_THREADS=1 python -m scripts.bench.whole_step [--pairs 5] [--worlds grpo rloo equal] [--json FILE]

Llama of 12.6M random weights, 8192 tokens, 32 answers in groups of 8 and micro-batches of 8, KL coefficient 0.05,
prompts of 8 to 24 tokens; lengths log-normal with a mean of 36 of at most 128 (other draws for every pair), in `equal`
64 for every answer. Every turn is a fork of one process, so that its peak memory is its own. CPU seconds, one thread.
"""

from __future__ import annotations

import argparse
import gc
import os
import tempfile
from pathlib import Path

import numpy as np
import torch
from transformers.utils import logging

from scripts.bench.generation import DEVIATION, MEAN
from scripts.bench.measures import Measure, of_pairs, say, write
from scripts.bench.ppo_models import make
from scripts.bench.step_sides import Step, Taken, in_a_fork, ragged

ROWS, LIMIT, EQUAL = 32, 128, 64
GOALS = {"grpo": (0.35, 0.30), "rloo": (0.40, 0.40), "equal": (1.02, 1.02)}
"""Of the whole step, and of its update."""
NAMES = {"grpo": "GRPO", "rloo": "RLOO", "equal": "GRPO, equal lengths"}


def off_by(ours: Path, stock: Path) -> float:
    """Return the norm of the difference of two gradients over the norm of the second."""
    found, expected = (np.fromfile(file, dtype=np.float32).astype(np.float64) for file in (ours, stock))
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def measured(world: str, folder: Path, pairs: int) -> list[Measure]:
    """Return the measures of one world."""
    took: dict[str, list[Taken]] = {"ours": [], "stock": []}
    gradients = {side: folder / f"gradient-{side}" for side in took}
    off = 0.0
    for pair in range(pairs):
        lengths = ragged(ROWS, LIMIT, pair, mean=MEAN, deviation=DEVIATION)
        lengths = [EQUAL] * ROWS if world == "equal" else lengths
        step = Step(str(folder), "rloo" if world == "rloo" else "grpo", lengths)
        for side in ("ours", "stock") if pair % 2 else ("stock", "ours"):
            took[side].append(in_a_fork(side, step, gradients[side] if pair == 0 else None))
        a, b = took["ours"][-1], took["stock"][-1]
        if a.check != b.check:
            print(f"pair {pair}: other answers were sampled on the two sides", flush=True)
        if pair == 0:
            off = off_by(gradients["ours"], gradients["stock"])
        print(f"{world} {pair}: step {a.step_s:.2f}/{b.step_s:.2f} CPU s, generation", end=" ")
        print(f"{a.generation_s:.2f}/{b.generation_s:.2f}, peak {a.peak_mb:.0f}/{b.peak_mb:.0f} MB", end="")
        print(f", slots {a.slots}/{b.slots} for {b.tokens:.0f} tokens", flush=True)
        for side in took:
            said = ", ".join(f"{name} {seconds:.2f}" for name, seconds in took[side][-1].phases.items())
            print(f"    {side}: {said} CPU s", flush=True)
    name, (goal, of_update) = NAMES[world], GOALS[world]

    def both(figure: str) -> list[tuple[float, float]]:
        return [(getattr(a, figure), getattr(b, figure)) for a, b in zip(took["ours"], took["stock"], strict=True)]

    updates = [(a - of_a, b - of_b) for (a, b), (of_a, of_b) in zip(both("step_s"), both("generation_s"), strict=True)]
    tokens = sum(b for _, b in both("tokens"))
    measures = [
        of_pairs(f"{name}: whole step", "time", "CPU s", both("step_s"), goal),
        of_pairs(f"{name}: without generation", "time", "CPU s", updates, of_update),
        of_pairs(f"{name}: its generation", "time", "CPU s", both("generation_s"), None if world == "equal" else 0.45),
        of_pairs(f"{name}: peak memory", "memory", "MB", both("peak_mb"), 1.0),
    ]
    for side, index in (("ours", 0), ("TRL's", 1)):
        slots = sum(pair[index] for pair in both("slots"))
        goal_of = 0.8 if index == 0 and world != "equal" else None
        measures.append(Measure(f"{name}: {side} slots a token", "counter", slots / tokens, goal=goal_of, pairs=pairs))
    measures.append(Measure(f"{name}: gradient off by", "note", off, goal=1e-6))
    return measures


def main() -> None:
    """Print a line a pair, then a table; write it as JSON where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--worlds", nargs="+", choices=[*GOALS], default=[*GOALS])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    os.environ |= {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    logging.disable_progress_bar()
    import trl

    _ = trl.GRPOTrainer, trl.RLOOTrainer  # both sides need them, so neither pays for it
    with tempfile.TemporaryDirectory() as temporary:
        os.environ |= {"RLHF_CACHE": f"{temporary}/cache", "HF_DATASETS_CACHE": f"{temporary}/datasets"}
        make(Path(temporary), vocab=8192, end_probability=0.02)
        gc.collect()
        gc.freeze()
        found: list[Measure] = []
        for world in options.worlds:
            found += measured(world, Path(temporary), options.pairs)
            if options.json:
                write(options.json, found)
    print(say(found))


if __name__ == "__main__":
    main()
