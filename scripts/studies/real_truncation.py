"""Test whether bootstrapping helps a real model: four values of a truncated answer, two critics, ten seeds each.

usage: python scripts/studies/real_truncation.py [--root FOLDER] [--picture OUT.svg] [--jobs N]

The question of truncation.py on SmolLM2 (`make real`). It first learns sums that are answered with a number or in a
sentence, a third of them wrong: one starting model per seed. PPO then truncates answers at four tokens: a number and
its end fit, a sentence does not. A run has eight rounds of 32 answers. The critic is the first six layers of the
starting model under a new head: either random, or zero and trained by eight such rounds with a fixed policy. Runs what
is missing, resumes what was stopped, and prints Markdown tables.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import torch
from pictures import draw_forest
from seeds import SEEDS, by_seed, differences, study_arguments, sweep, table, tables, write_numbers
from transformers import AutoModelForTokenClassification

from rlhf_cli.data.worlds import generate
from rlhf_cli.runs.metrics_file import read_metrics, series
from rlhf_cli.runs.run_folder import RunFolder

EXPERIMENT = "smollm2_ppo"
QUESTION = [{"role": "system", "content": "Add."}, {"role": "user", "content": "{question}"}]
SENTENCES = ("The answer is {}.", "That makes {} in all.", "I think it is {}.")
LORA = "model.lora={r: 16, lora_alpha: 32}"
LAYERS = 6
POLICIES = {
    "none": ("none", ["truncation=none"]),
    "eos_penalty": ("eos_penalty, 1 subtracted", ["truncation=eos_penalty"]),
    "bootstrap": ("bootstrap, replace", ["truncation=bootstrap", "truncation.mode=replace"]),
    "exclude": ("exclude", ["truncation=exclude"]),
}
CRITICS = {"random": "random-${seed}", "taught": f"{EXPERIMENT}/taught-${{seed}}/critic"}
"""Critic -> its folder below the root."""
ROUNDS = 8
ARGS = {
    "max_steps": 2 * ROUNDS,
    "per_device_train_batch_size": 16,
    "steps_per_generation": 2,
    "num_iterations": 1,
    "num_generations": 8,
    "max_completion_length": 4,
    "learning_rate": 3e-4,
    "logging_steps": 2,
    "eval_strategy": "no",
    "eval_on_start": False,
    "save_strategy": "no",
}
BASE = "none"
MEASURES = {
    "correct": "correct, end",
    "area": "correct, whole run",
    "ended": "not cut off, end",
    "ended_area": "not cut off, whole run",
}
"""`end`: the last three rounds, 96 answers; `whole run`: the mean over all, larger if it is learned sooner."""
EXPLAINED = "explained variance, 1st round"
COMPARED = ["correct", "area", "ended"]


def label(policy: str, critic: str) -> str:
    """Return the name of a condition in the tables."""
    return f"{POLICIES[policy][0]}; {critic}"


def demonstrations(seed: int, count: int = 192) -> list[dict[str, object]]:
    """Return sums with answers in the toy's mixture: a third wrong by 1, 2 or 10, half of them in a sentence."""
    style, rows = Random(seed), []
    for row in generate("split_sums", {"num_rows": count, "max_value": 20}, seed=seed, name="data"):
        number = int(str(row["answer"])) + (style.choice((-10, -2, -1, 1, 2, 10)) if style.random() < 0.35 else 0)
        answer = (style.choice(SENTENCES) if style.random() < 0.5 else "{}").format(max(0, number))
        asked = [{**turn, "content": turn["content"].format(question=row["question"])} for turn in QUESTION]
        rows.append({"prompt": asked, "completion": [{"role": "assistant", "content": answer}]})
    return rows


def make_start(root: Path, seed: int) -> None:
    """Make the starting model of a seed and its two critics if they are missing."""
    rows, run, model = (root / f"{name}-{seed}" for name in ("rows", "sft/start", "start"))
    settings = [f"seed={seed}", "launch=cpu", "track=none", f"run.root={root}"]
    if not model.exists():
        rows = rows.with_suffix(".jsonl")
        rows.write_text("\n".join(map(json.dumps, demonstrations(seed))) + "\n", encoding="utf-8")
        args = {"max_steps": 12, "per_device_train_batch_size": 16, "learning_rate": 1e-3, "save_strategy": "no"}
        args |= {"lr_scheduler_type": "linear", "gradient_checkpointing": False}
        words = ["trainer=sft", "model=smollm2", LORA, "data=file", f"data.path={rows}", *settings]
        rlhf("train", *words, *(f"trainer.args.{key}={value}" for key, value in args.items()), f"run.name={run.name}")
        rlhf("export", str(run), "--out", str(model))
    # Initialised like the reward heads of arXiv 2403.17031: meaningless values of deviation 1.
    for name, scale in (("random", 1.0), ("untaught", 0.0)):
        folder = root / f"{name}-{seed}"
        if not folder.exists():
            torch.manual_seed(seed)
            critic = AutoModelForTokenClassification.from_pretrained(model, num_labels=1, num_hidden_layers=LAYERS)
            torch.nn.init.normal_(critic.score.weight, std=scale * (critic.config.hidden_size + 1) ** -0.5)
            torch.nn.init.zeros_(critic.score.bias)
            critic.save_pretrained(folder)
    if not (root / CRITICS["taught"].replace("${seed}", str(seed))).exists():
        words = [*words_of(BASE, "random", root), f"critic.init={root}/untaught-{seed}", f"run.name=taught-{seed}"]
        rlhf("train", f"+exp={EXPERIMENT}", *words, f"critic.warmup_steps={ARGS['max_steps']}", *settings)


def rlhf(*words: str) -> None:
    """Run our command. Raise CalledProcessError if it fails."""
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-m", "rlhf_cli", *words], check=True, stdout=sys.stderr, env=one_thread)


def words_of(policy: str, critic: str, root: Path) -> list[str]:
    """Return the words of a condition after the experiment's name."""
    asked = [f'{{role: {turn["role"]}, content: "{turn["content"]}"}}' for turn in QUESTION]
    return [
        "model=local",
        f"model.path={root}/start-${{seed}}",
        LORA,
        f"data.prompt=[{', '.join(asked)}]",
        f"critic.init={root}/{CRITICS[critic]}",
        "critic.share=none",
        "critic.learning_rate=2e-4",
        "kl.where=none",
        "rewards.near.weight=0",
        "guards.no_signal=off",  # a policy that always hits the limit is a result here
        *POLICIES[policy][1],
        *(f"trainer.args.{key}={value}" for key, value in ARGS.items()),
        "expect=null",
    ]


def measure(run: RunFolder) -> dict[str, float]:
    """Return the measures of one finished run."""
    events = read_metrics(run.metrics)
    correct = series(events, "rewards/correct/mean")[1]
    ended = [1 - fraction for fraction in series(events, "rewards/truncation/fraction")[1]]
    return {
        "correct": statistics.fmean(correct[-3:]),
        "area": statistics.fmean(correct),
        "ended": statistics.fmean(ended[-3:]),
        "ended_area": statistics.fmean(ended),
        EXPLAINED: series(events, "ppo/explained_variance")[1][0],
    }


def main() -> None:
    """Run what is missing, print the tables, draw the picture."""
    arguments = study_arguments(__doc__ or "", jobs=True)
    root = arguments.root.resolve()
    root.mkdir(parents=True, exist_ok=True)
    conditions = [(policy, critic) for policy in POLICIES for critic in CRITICS]

    def runs_of(condition: tuple[str, str]) -> Path:
        return sweep(EXPERIMENT, "-".join(condition), words_of(*condition, root), root)

    with ThreadPoolExecutor(arguments.jobs) as pool:
        list(pool.map(lambda seed: make_start(root, seed), SEEDS))
        folders = list(pool.map(runs_of, conditions))
    found = {label(*condition): by_seed(folder, measure) for condition, folder in zip(conditions, folders, strict=True)}
    base_of = {label(policy, critic): label(BASE, critic) for policy, critic in conditions if policy != BASE}
    print(tables(found, base_of, "policy; critic", "minus none with that critic", MEASURES, COMPARED))
    of_random = {label(policy, "taught"): label(policy, "random") for policy in POLICIES}
    columns = {name: MEASURES[name] for name in COMPARED}
    apart = differences(found, of_random, COMPARED)
    rows = {name: [f"{cell.mean:+.3f} ± {cell.half:.3f}" for cell in cells] for name, cells in apart.items()}
    print(f"\n{table('minus the random critic', columns, rows)}")
    for critic in CRITICS:  # medians, because a round of nearly equal returns makes it hugely negative
        values = [run[EXPLAINED] for policy in POLICIES for run in found[label(policy, critic)]]
        print(f"\n{EXPLAINED}, {critic} critic, median of {len(values)} runs: {statistics.median(values):.2f}")
    if arguments.picture:
        apart = differences(found, base_of, COMPARED)
        panels = {MEASURES[name]: [cells[place] for cells in apart.values()] for place, name in enumerate(COMPARED)}
        draw_forest(arguments.picture, list(apart), panels, zero="none")
        write_numbers(arguments.picture, "policy; critic", found)


if __name__ == "__main__":
    main()
