"""Does bootstrapping help? Six ways to value a cut-off answer, each with three critics, ten seeds each.

usage: truncation.py [--root FOLDER] [--picture OUT.svg] [--jobs N]

Makes the random and the reward-model critic where they are not there yet, runs a sweep over the seeds for each
condition, where its folder is not there yet, and prints Markdown tables.
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
from rlhf_cli.runs.metrics_file import read_metrics, series, start_and_end
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.trainers.assemble.policy_loading import policy_path

EXPERIMENT = "study_truncation"
BASE = "none"
LONG = 32
"""Bytes that the finished policy is allowed when it is asked what it would say if it were not cut off at eight."""

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
"""`end`: the last tenth of the rounds; `whole run`: the mean over all, larger where it is learned sooner."""


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
        """What to type beside the experiment's name; a critic begins with the weights of its seed's policy."""
        init = {
            "random": f"critic.init={critics}/random-${{seed}}",
            "warmed": f"critic.warmup_steps={WARMUP_STEPS}",
            "reward": f"critic.init={critics}/reward-${{seed}}",
        }
        return [*POLICIES[self.policy][1], init[self.critic]]


CONDITIONS = [Condition(policy, critic) for policy in POLICIES for critic in CRITICS]
COMPARED = ["correct", "area", "long"]


def make_critics(folder: Path, policy: str, seed: int) -> None:
    """The random critic and the one that begins as a reward model, both on its seed's policy."""
    tokenizer = AutoTokenizer.from_pretrained(policy)
    torch.manual_seed(seed)
    if not (folder / f"random-{seed}").exists():
        critic = AutoModelForTokenClassification.from_pretrained(policy, num_labels=1)
        # As reward heads are initialised in arXiv 2403.17031: values of deviation 1 that mean nothing.
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
    """Bradley-Terry on right against wrong answers to sums, wordy and bare ones; its accuracy over the last tenth."""
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
    """The model that the runs of a seed begin with, made where there is none yet."""
    experiment = prepare([f"+exp={EXPERIMENT}", f"seed={seed}"]).experiment
    return policy_path(experiment, lambda what, step, steps: None)


def measure(run: RunFolder) -> dict[str, float]:
    """Every measure of one finished run."""
    events = read_metrics(run.metrics)
    names = {
        "correct": "rewards/correct/mean",
        "cut": "rewards/truncation/fraction",
        "length": "completions/mean_length",
    }
    found = {}
    for name, metric in names.items():
        ends = start_and_end(series(events, metric)[1])
        if ends is None:
            raise SystemExit(f"{run.path}: no {metric} was logged; remove {run.path.parent} and try again")
        found[name] = ends[1]
    found["area"] = statistics.fmean(series(events, "rewards/correct/mean")[1])
    found["explained"] = series(events, "ppo/explained_variance")[1][1]
    return {**found, "long": correct_when_not_cut(run)}


@torch.no_grad()
def correct_when_not_cut(run: RunFolder, num_prompts: int = 200) -> float:
    """Of fresh prompts, the share that the finished policy answers rightly, sampling, when it may use LONG bytes."""
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

    def runs_of(one: Condition) -> Path:
        return sweep(EXPERIMENT, one.name, one.overrides(critics), root)

    with ThreadPoolExecutor(arguments.jobs) as pool:
        folders = list(pool.map(runs_of, CONDITIONS))
    found = {one.label: by_seed(folder, measure) for one, folder in zip(CONDITIONS, folders, strict=True)}
    base_of = {one.label: Condition(BASE, one.critic).label for one in CONDITIONS if one.policy != BASE}
    print(tables(found, base_of, "policy; critic", "minus none with that critic", MEASURES, COMPARED))
    if arguments.picture:
        apart = differences(found, base_of, COMPARED)
        panels = {MEASURES[name]: [cells[place] for cells in apart.values()] for place, name in enumerate(COMPARED)}
        draw_forest(arguments.picture, list(apart), panels, zero="none", reach=0.15)
        write_numbers(arguments.picture, "policy; critic", found)


if __name__ == "__main__":
    main()
