"""Measure how optimising a learnt reward changes the true one: PPO on two reward models, under two KL penalties.

usage: python scripts/studies/overoptimisation.py [--root FOLDER] [--picture OUT.svg] [--jobs N]

Trains missing reward models on few and on many pairs, runs a sweep over the seeds for each missing condition, and
prints a Markdown table.
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
"""Reward model -> number of its training pairs."""
COEFS = (0.0001, 0.1)
"""Coefficients of the KL penalty; the first only measures the divergence."""
LAST = 4
"""Number of rounds that count as the end."""


@dataclass(frozen=True)
class Condition:
    """A reward model and a penalty for leaving the starting policy."""

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
    """Return a reward model for a seed, trained on `pairs` pairs if it is missing, from the model of the seed's
    runs.
    """
    run = RunFolder(root / "toy_reward" / f"{pairs}-{seed}")
    if not run.model.exists():
        words = ["+exp=toy_reward", f"seed={seed}", f"model.build.seed={seed}"]
        words += [f"data.args.num_rows={PAIRS[pairs]}", "track=none", "launch=cpu"]
        words += ["trainer.args.max_steps=300", "trainer.args.learning_rate=3e-3"]
        if rlhf(["train", *words, f"run.root={root}", f"run.name={run.path.name}"]):
            raise SystemExit("the reward model was not trained")


def measure(run: RunFolder) -> dict[str, float]:
    """Return the true reward at its best and at the end, the learnt one at the end, and the final divergence."""
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
"""Return the measures of each condition's runs, one per seed."""


def differences(found: Found) -> dict[str, list[str]]:
    """Return the claims about the true reward, paired by seed and corrected for all claims; bold if significant.

    No claim picks a round by its own outcome, as `best` does, whose difference to the end is positive by noise alone.
    """
    changes = {
        f"{condition.label}: end - start": [run["end"] - run["start"] for run in runs]
        for condition, runs in found.items()
    }
    for pairs, number in PAIRS.items():
        free, held = (found[Condition(pairs, coef)] for coef in COEFS)
        ends = zip(held, free, strict=True)
        changes[f"{number} pairs, end: KL {COEFS[1]:g} - KL {COEFS[0]:g}"] = [a["end"] - b["end"] for a, b in ends]
    rows = {}
    for label, values in changes.items():
        change = interval(values, comparisons=len(changes))
        text = f"{change.mean:+.3f} ± {change.half:.3f}"
        rows[label] = [f"**{text}**" if change.is_clear else text]
    return rows


def curve(run: RunFolder, condition: Condition, metric: str) -> Curve:
    """Return a metric over the square root of the divergence, as in Gao et al. (arXiv 2210.10760), round by round."""
    events = read_metrics(run.metrics)
    distance = [max(0.0, kl) ** 0.5 for kl in series(events, "kl/k1_policy_ref_per_row")[1]]
    return Curve(condition.label, distance, series(events, metric)[1])


def main() -> None:
    """Run what is missing, print the table, draw the picture."""
    arguments = study_arguments(__doc__, jobs=True)
    root = arguments.root.resolve()
    for seed in SEEDS:
        for pairs in PAIRS:
            reward_model(pairs, seed, root)

    def runs_of(condition: Condition) -> Path:
        words = [
            f"rewards.proxy.model={root}/toy_reward/{condition.pairs}-${{seed}}/model",
            f"kl.coef={condition.coef}",
        ]
        return sweep(EXPERIMENT, condition.name, words, root)

    with ThreadPoolExecutor(arguments.jobs) as pool:
        folders = list(pool.map(runs_of, CONDITIONS))
    found = {condition: by_seed(folder, measure) for condition, folder in zip(CONDITIONS, folders, strict=True)}
    rows = {}
    for condition, runs in found.items():
        cells = [interval([run[name] for run in runs]) for name in MEASURES]
        rows[condition.label] = [f"{cell.mean:.2f} ± {cell.half:.2f}" for cell in cells]
    print(table("reward model, penalty", MEASURES, rows))
    print()
    print(table("true reward", {"difference": "difference"}, differences(found)))
    if arguments.picture:
        runs = [
            (condition, RunFolder(folder / "seed=0")) for condition, folder in zip(CONDITIONS, folders, strict=True)
        ]
        panels = {
            "true reward": [curve(run, condition, "rewards/truth/mean") for condition, run in runs],
            "learnt reward": [curve(run, condition, "rewards/proxy/mean") for condition, run in runs],
        }
        write_numbers(
            arguments.picture, "reward model, penalty", {condition.label: runs for condition, runs in found.items()}
        )
        draw_curves(arguments.picture, panels, x_title="√KL(policy ‖ start), nats an answer")


if __name__ == "__main__":
    main()
