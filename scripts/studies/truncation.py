"""Test whether bootstrapping helps: six values of a truncated answer, each with three critics, ten seeds each.

usage: python scripts/studies/truncation.py [--root FOLDER] [--picture OUT.svg] [--jobs N]

Makes the random and the reward-model critic if they are missing, runs a sweep over the seeds for each missing
condition, and prints Markdown tables.
"""

from __future__ import annotations

import statistics
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from pictures import draw_forest
from seeds import SEEDS, by_seed, differences, study_arguments, sweep, tables, write_numbers
from torch.nn.functional import logsigmoid
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
)

from rlhf_cli.data.worlds import generate
from rlhf_cli.plan.prepare import prepare
from rlhf_cli.rewards.toy import sums_correct
from rlhf_cli.runs.metric_arrays import columns_of, start_and_end
from rlhf_cli.runs.metrics_file import read_metrics, series
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.trainers.assemble.policy_loading import policy_path

EXPERIMENT = "study_truncation"
BASE = "none"
LONG = 32
"""Bytes allowed when the finished policy is tested without its limit of eight."""

POLICIES = {
    "none": ("none", ["truncation=none"]),
    "eos_penalty": ("eos_penalty, 1 subtracted", ["truncation=eos_penalty"]),
    "bootstrap_add": ("bootstrap, add", ["truncation=bootstrap", "truncation.mode=add"]),
    "bootstrap_replace": ("bootstrap, replace", ["truncation=bootstrap", "truncation.mode=replace"]),
    "exclude": ("exclude", ["truncation=exclude"]),
    "soft_overlong": ("soft_overlong, cache 4", ["truncation=soft_overlong", "truncation.cache=4"]),
}
CRITICS = {"random": "random", "warmed": "warmed up", "reward": "from a reward model"}
WARMUP_STEPS = 32  # two rounds
MEASURES = {
    "correct": "correct, end",
    "area": "correct, whole run",
    "long": f"correct in {LONG} bytes",
    "cut": "cut off, end",
    "length": "bytes, end",
    "explained": "explained variance, 2nd round",
}
"""`end`: the last tenth of the rounds; `whole run`: the mean over all, larger if it is learned sooner."""


@dataclass(frozen=True)
class Condition:
    """A truncation policy with a critic."""

    policy: str
    critic: str

    @property
    def name(self) -> str:
        return f"{self.policy}-{self.critic}"

    @property
    def label(self) -> str:
        return f"{POLICIES[self.policy][0]}; {CRITICS[self.critic]}"

    def overrides(self, critics: Path) -> list[str]:
        """Return the words after the experiment's name; a critic begins with the weights of its seed's policy."""
        init = {
            "random": f"critic.init={critics}/random-${{seed}}",
            "warmed": f"critic.warmup_steps={WARMUP_STEPS}",
            "reward": f"critic.init={critics}/reward-${{seed}}",
        }
        return [*POLICIES[self.policy][1], init[self.critic]]


CONDITIONS = [Condition(policy, critic) for policy in POLICIES for critic in CRITICS]
COMPARED = ["correct", "area", "long"]


def make_critics(folder: Path, policy: str, seed: int) -> None:
    """Make the random critic and the one from a reward model, both on its seed's policy."""
    tokenizer = AutoTokenizer.from_pretrained(policy)
    torch.manual_seed(seed)
    if not (folder / f"random-{seed}").exists():
        critic = AutoModelForTokenClassification.from_pretrained(policy, num_labels=1)
        # Initialised like the reward heads of arXiv 2403.17031: meaningless values of deviation 1.
        torch.nn.init.normal_(critic.score.weight, std=(critic.config.hidden_size + 1) ** -0.5)
        torch.nn.init.zeros_(critic.score.bias)
        critic.save_pretrained(folder / f"random-{seed}")
        tokenizer.save_pretrained(folder / f"random-{seed}")
    if not (folder / f"reward-{seed}").exists():
        model = AutoModelForSequenceClassification.from_pretrained(policy, num_labels=1)
        accuracy = train_reward_model(model, tokenizer, seed + 1)
        print(f"reward model of seed {seed}: {accuracy:.3f} of its last pairs the right way round", file=sys.stderr)
        model.save_pretrained(folder / f"reward-{seed}")
        tokenizer.save_pretrained(folder / f"reward-{seed}")


def train_reward_model(
    model: torch.nn.Module, tokenizer: AutoTokenizer, seed: int, steps: int = 400, batch_size: int = 64
) -> float:
    """Train by Bradley-Terry on right and wrong answers to sums, wordy and bare; return its accuracy over the last
    tenth.
    """
    pairs = generate("toy_preferences", {"num_rows": steps * batch_size, "max_value": 20}, seed=seed, name="data")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    right = []
    for step in range(steps):
        batch = pairs[step * batch_size : (step + 1) * batch_size]
        texts = [row["prompt"] + row[side] for side in ("chosen", "rejected") for row in batch]
        encoded = tokenizer(texts, padding=True, padding_side="right", return_tensors="pt")
        chosen, rejected = model(**encoded).logits[:, 0].chunk(2)
        loss = -logsigmoid(chosen - rejected).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        right.append((chosen > rejected).float().mean().item())
    return statistics.fmean(right[-steps // 10 :])


def policy_folder(seed: int) -> str:
    """Return the starting model of a seed, made if it is missing."""
    experiment = prepare([f"+exp={EXPERIMENT}", f"seed={seed}"]).experiment
    return policy_path(experiment, lambda what, step, steps: None)


def measure(run: RunFolder) -> dict[str, float]:
    """Return every measure of one finished run."""
    events = read_metrics(run.metrics)
    names = {
        "correct": "rewards/correct/mean",
        "cut": "rewards/truncation/fraction",
        "length": "completions/mean_length",
    }
    found = {}
    for name, metric in names.items():
        ends = start_and_end(columns_of(events).series(metric))
        if ends is None:
            raise SystemExit(f"{run.path}: no {metric} was logged; remove {run.path.parent} and try again")
        found[name] = ends[1]
    found["area"] = statistics.fmean(series(events, "rewards/correct/mean")[1])
    found["explained"] = series(events, "ppo/explained_variance")[1][1]
    return {**found, "long": correct_when_not_cut(run)}


@torch.no_grad()
def correct_when_not_cut(run: RunFolder, num_prompts: int = 200) -> float:
    """Return the share of fresh prompts that the finished policy answers correctly, sampling, with LONG bytes."""
    tokenizer = AutoTokenizer.from_pretrained(run.model, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(run.model).eval()
    rows = generate("toy_sums", {"num_rows": num_prompts, "max_value": 20}, seed=99, name="data")
    encoded = tokenizer([row["prompt"] for row in rows], padding=True, return_tensors="pt")
    torch.manual_seed(0)
    ids = model.generate(**encoded, max_new_tokens=LONG, do_sample=True, top_k=0)
    texts = tokenizer.batch_decode(ids[:, encoded["input_ids"].shape[1] :], skip_special_tokens=True)
    return statistics.fmean(sums_correct(texts, [row["a"] for row in rows], [row["b"] for row in rows]))


def main() -> None:
    """Run what is missing, print the tables, draw the picture."""
    arguments = study_arguments(__doc__, jobs=True)
    root = arguments.root.resolve()
    critics = root / EXPERIMENT / "critics"
    for seed in SEEDS:
        make_critics(critics, policy_folder(seed), seed)

    def runs_of(condition: Condition) -> Path:
        return sweep(EXPERIMENT, condition.name, condition.overrides(critics), root)

    with ThreadPoolExecutor(arguments.jobs) as pool:
        folders = list(pool.map(runs_of, CONDITIONS))
    found = {condition.label: by_seed(folder, measure) for condition, folder in zip(CONDITIONS, folders, strict=True)}
    base_of = {
        condition.label: Condition(BASE, condition.critic).label for condition in CONDITIONS if condition.policy != BASE
    }
    print(tables(found, base_of, "policy; critic", "minus none with that critic", MEASURES, COMPARED))
    if arguments.picture:
        apart = differences(found, base_of, COMPARED)
        panels = {MEASURES[name]: [cells[place] for cells in apart.values()] for place, name in enumerate(COMPARED)}
        draw_forest(arguments.picture, list(apart), panels, zero="none", reach=0.15)
        write_numbers(arguments.picture, "policy; critic", found)


if __name__ == "__main__":
    main()
