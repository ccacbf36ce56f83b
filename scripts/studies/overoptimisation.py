"""What optimising a learnt reward does to the true one: PPO on two reward models, under two KL penalties.

usage: overoptimisation.py [--root FOLDER] [--picture OUT.svg] [--jobs N]

Trains a reward model on few and one on many pairs where they are not there yet, runs a sweep over the seeds for each
condition, where its folder is not there yet, and prints a Markdown table.
"""

from __future__ import annotations

import statistics
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from pictures import Curve, draw_curves
from seeds import SEEDS, by_seed, interval, study_arguments, sweep, table, write_numbers

from rlhf_cli.cli import main as rlhf
from rlhf_cli.runs.metrics_file import read_metrics, series
from rlhf_cli.runs.run_folder import RunFolder

EXPERIMENT = "study_overoptimisation"
PAIRS = {"few": 120, "many": 2000}
"""Name of a reward model -> preference pairs that it is trained on."""
COEFS = (0.0001, 0.1)
"""Of the KL penalty; the first only measures the divergence."""
LAST = 4
"""Rounds at the end whose mean is the end."""


@dataclass(frozen=True)
class Condition:
    """A reward model and the penalty for leaving the policy that all begin as."""

    pairs: str
    coef: float

    @property
    def name(self) -> str:
        return f"{self.pairs}-{self.coef:g}"

    @property
    def label(self) -> str:
        return f"{PAIRS[self.pairs]} pairs, KL {self.coef:g}"


CONDITIONS = [Condition(pairs, coef) for pairs in PAIRS for coef in COEFS]


def reward_model(pairs: str, seed: int, root: Path) -> None:
    """A reward model trained on so many pairs, made where there is none yet from the model that the seed's runs begin
    with.
    """
    run = RunFolder(root / "toy_reward" / f"{pairs}-{seed}")
    if not run.model.exists():
        words = ["+exp=toy_reward", f"seed={seed}", f"model.build.seed={seed}"]
        words += [f"data.args.num_rows={PAIRS[pairs]}", "track=none", "launch=cpu"]
        words += ["trainer.args.max_steps=300", "trainer.args.learning_rate=3e-3"]
        if rlhf(["train", *words, f"run.root={root}", f"run.name={run.path.name}"]):
            raise SystemExit("the reward model was not trained")


def measure(run: RunFolder) -> dict[str, float]:
    """The true reward at its best and at the end, the learnt one at the end, and how far the policy went."""
    events = read_metrics(run.metrics)
    truth, proxy = (series(events, f"rewards/{name}/mean")[1] for name in ("truth", "proxy"))
    distance = series(events, "kl/k1_policy_ref_per_row")[1]
    best = max(statistics.fmean(truth[start : start + LAST]) for start in range(len(truth) - LAST + 1))
    return {
        "start": truth[0],
        "best": best,
        "end": statistics.fmean(truth[-LAST:]),
        "lost": best - statistics.fmean(truth[-LAST:]),
        "proxy_gain": statistics.fmean(proxy[-LAST:]) - proxy[0],
        "kl": statistics.fmean(distance[-LAST:]),
    }


MEASURES = {
    "start": "true, start",
    "best": "true, best",
    "end": "true, end",
    "lost": "best - end",
    "proxy_gain": "learnt, gained",
    "kl": "KL at the end",
}


Found = dict[Condition, list[dict[str, float]]]
"""The measures of each condition's runs, one a seed."""


def differences(found: Found) -> dict[str, list[str]]:
    """What is claimed of the true reward, seed by seed and wide enough for all claims together; bold beyond doubt.

    None of it picks a round by its own outcome, as `best` does, whose difference to the end is above 0 for noise too.
    """
    changes = {f"{one.label}: end - start": [run["end"] - run["start"] for run in runs] for one, runs in found.items()}
    for pairs, number in PAIRS.items():
        free, held = (found[Condition(pairs, coef)] for coef in COEFS)
        ends = zip(held, free, strict=True)
        changes[f"{number} pairs, end: KL {COEFS[1]:g} - KL {COEFS[0]:g}"] = [a["end"] - b["end"] for a, b in ends]
    rows = {}
    for label, values in changes.items():
        one = interval(values, comparisons=len(changes))
        text = f"{one.mean:+.3f} ± {one.half:.3f}"
        rows[label] = [f"**{text}**" if one.is_clear else text]
    return rows


def curve(run: RunFolder, one: Condition, metric: str) -> Curve:
    """A metric over the square root of the divergence, as in Gao et al. (arXiv 2210.10760), round by round."""
    events = read_metrics(run.metrics)
    distance = [max(0.0, kl) ** 0.5 for kl in series(events, "kl/k1_policy_ref_per_row")[1]]
    return Curve(one.label, distance, series(events, metric)[1])


def main() -> None:
    """Run what is missing, print the table, draw the picture."""
    arguments = study_arguments(__doc__, jobs=True)
    root = arguments.root.resolve()
    for seed in SEEDS:
        for pairs in PAIRS:
            reward_model(pairs, seed, root)

    def runs_of(one: Condition) -> Path:
        words = [f"rewards.proxy.model={root}/toy_reward/{one.pairs}-${{seed}}/model", f"kl.coef={one.coef}"]
        return sweep(EXPERIMENT, one.name, words, root)

    with ThreadPoolExecutor(arguments.jobs) as pool:
        folders = list(pool.map(runs_of, CONDITIONS))
    found = {one: by_seed(folder, measure) for one, folder in zip(CONDITIONS, folders, strict=True)}
    rows = {}
    for one, runs in found.items():
        cells = [interval([run[name] for run in runs]) for name in MEASURES]
        rows[one.label] = [f"{cell.mean:.2f} ± {cell.half:.2f}" for cell in cells]
    print(table("reward model, penalty", MEASURES, rows))
    print()
    print(table("true reward", {"difference": "difference"}, differences(found)))
    if arguments.picture:
        runs = [(one, RunFolder(folder / "seed=0")) for one, folder in zip(CONDITIONS, folders, strict=True)]
        panels = {
            "true reward": [curve(run, one, "rewards/truth/mean") for one, run in runs],
            "learnt reward": [curve(run, one, "rewards/proxy/mean") for one, run in runs],
        }
        write_numbers(arguments.picture, "reward model, penalty", {one.label: runs for one, runs in found.items()})
        draw_curves(arguments.picture, panels, x_title="√KL(policy ‖ start), nats an answer")


if __name__ == "__main__":
    main()
