"""How often the sign that `rlhf whatif` reads off stored rollouts is the sign of what a real run does.

usage: nice -n 15 python -m scripts.bench.whatif [--root FOLDER] [--seeds 4] [--steps 60]

A base run of `exp=quickstart`, by GRPO and by RLOO, and real runs with other weights, gates and aggregates, one process
for all and one run after another; those that lie in the folder already are not run again. For each component the
prediction is whether the advantages of stored rollouts push it harder under the other setting (`push`,
analysis/whatif/what_if.py), the outcome whether the real run's raw mean is higher than the base run's of the
same seed at a horizon, over five steps around it. Every completion is scored by every component, whatever a gate has
turned away. Printed are Markdown tables.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlhf_cli.analysis.whatif.stored_rounds import StoredRounds, read_rounds
from rlhf_cli.analysis.whatif.what_if import RoundDifference, what_if
from rlhf_cli.analysis.whatif.whatif_request import ask
from rlhf_cli.cli import main as rlhf
from rlhf_cli.numerics.intervals import wilson_of_groups
from rlhf_cli.rewards.length import length_ramp
from rlhf_cli.rewards.toy import digits_only, sums_correct
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_status import FINISHED, read_status

COMPONENTS = ("correct", "format", "brevity")
BASES: dict[str, tuple[str, ...]] = {"grpo": (), "rloo": ("trainer=rloo",)}
SETTINGS: dict[str, tuple[str, ...]] = {
    "correct 0": ("rewards.correct.weight=0",),
    "correct 4": ("rewards.correct.weight=4",),
    "format 0": ("rewards.format.weight=0",),
    "format 3": ("rewards.format.weight=3",),
    "format -1": ("rewards.format.weight=-1",),
    "brevity 0": ("rewards.brevity.weight=0",),
    "brevity 3": ("rewards.brevity.weight=3",),
    "brevity -1": ("rewards.brevity.weight=-1",),
    "primary correct": ("primary={by: correct, at_least: 1.0}",),
    "normalize_then_sum": ("aggregate=normalize_then_sum",),
}
HORIZONS = (5, 20, 60)
WINDOW = 5
"""Steps whose mean is the outcome at a horizon: those that end with it."""


@dataclass(frozen=True)
class Trial:
    """One component under one setting and seed: what was predicted from the first round and from those up to a horizon,
    and what came, as differences to the base run."""

    base: str
    setting: str
    seed: int
    component: str
    first: float
    so_far: dict[int, float]
    came: dict[int, float]


def trained(root: Path, base: str, setting: str, seed: int, steps: int, *, makes: bool) -> RunFolder | None:
    """The run of these settings, made if it is not there; None where it is not to be made."""
    name = f"{base}-{setting.replace(' ', '_')}-{seed}"
    run = RunFolder(root / "runs" / "quickstart" / name)
    if run.status.is_file() and read_status(run).state == FINISHED:
        return run
    if not makes:
        return None
    words = [*BASES[base], *SETTINGS.get(setting, ()), f"seed={seed}", f"trainer.args.max_steps={steps}"]
    words += ["track=none", "launch=cpu", "trainer.args.save_strategy=no", "run.keep_completions.last=all"]
    words += ["trainer.args.per_device_train_batch_size=64", "trainer.args.num_generations=8", "guards.no_signal=off"]
    code = rlhf(["train", "+exp=quickstart", *words, f"run.root={root / 'runs'}", f"run.name={name}"])
    if code:
        raise SystemExit(f"{name} ended with {code}")
    return run


def raw_means(rounds: StoredRounds) -> list[dict[str, float]]:
    """The mean of every component over each round's completions, all of them scored."""
    found = []
    for one in rounds.rounds:
        texts = [str(text) for text in one.columns["completion"]]
        a, b = ([int(str(value)) for value in one.columns[name]] for name in ("a", "b"))
        found.append(
            {
                "correct": statistics.fmean(sums_correct(texts, a=a, b=b)),
                "format": statistics.fmean(digits_only(texts)),
                "brevity": statistics.fmean(length_ramp(texts, full=2, zero=16, unit="characters")),
            }
        )
    return found


def at(means: Sequence[dict[str, float]], component: str, horizon: int) -> float:
    """A component's mean over the steps that end with the horizon."""
    return statistics.fmean(one[component] for one in means[max(0, horizon - WINDOW) : horizon])


def harder(rounds: Iterable[RoundDifference], component: str) -> float:
    """How much harder the component is pushed under the other setting, summed over rounds; NaN where nobody can say."""
    pairs = [one.push.get(component, (None, None)) for one in rounds]
    known = [new - old for old, new in pairs if old is not None and new is not None]
    return math.fsum(known) if known else math.nan


def trials(root: Path, seeds: int, steps: int, *, makes: bool) -> list[Trial]:
    """All trials, with the runs that are missing made, or left out."""
    horizons = [horizon for horizon in HORIZONS if horizon <= steps]
    found = []
    for seed in range(seeds):
        for base in BASES:
            run = trained(root, base, "base", seed, steps, makes=makes)
            if run is None:
                continue
            stored = read_rounds(run)
            was = raw_means(stored)
            for setting, words in SETTINGS.items():
                other = trained(root, base, setting, seed, steps, makes=makes)
                if other is None:
                    continue
                became = raw_means(read_rounds(other))
                answer = what_if(ask(run, list(words)), stored, steps)
                found += [
                    Trial(
                        base,
                        setting,
                        seed,
                        component,
                        first=harder(answer.rounds[:1], component),
                        so_far={one: harder(answer.rounds[:one], component) for one in horizons},
                        came={one: at(became, component, one) - at(was, component, one) for one in horizons},
                    )
                    for component in COMPONENTS
                ]
            print(f"{base}, seed {seed}: done", file=sys.stderr, flush=True)
    return found


def hits(judged: Iterable[tuple[float, float, Hashable]]) -> str:
    """`predicted, came, group` -> how often the signs agree, with a 95 % interval in which a group's rows are kin."""
    found = [(float((predicted > 0) == (came > 0)), group) for predicted, came, group in judged if predicted * came]
    if not found:
        return "-"
    right = [hit for hit, _ in found]
    share = wilson_of_groups(right, [group for _, group in found])
    return f"{sum(right):.0f}/{len(right)} = {share.mean:.2f} [{share.low:.2f}, {share.high:.2f}]"


def by_setting(one: Trial) -> Hashable:
    """Runs of one setting by one trainer have their settings' luck in common, and the components of a run."""
    return one.base, one.setting


def report(found: Sequence[Trial]) -> None:
    """Print the tables."""
    horizons = list(found[0].came)
    runs = len({(one.base, one.seed, one.setting) for one in found})
    print(f"{runs} runs against {len({(one.base, one.seed) for one in found})} base runs\n")
    print("| at step | from the first round | from the rounds so far | one sign, always |")
    print("|---|---|---|---|")
    for horizon in horizons:
        first = hits((one.first, one.came[horizon], by_setting(one)) for one in found)
        so_far = hits((one.so_far[horizon], one.came[horizon], by_setting(one)) for one in found)
        higher = [one.came[horizon] > 0 for one in found if one.came[horizon]]
        guess = max(sum(higher), len(higher) - sum(higher)) / len(higher)
        print(f"| {horizon} | {first} | {so_far} | {guess:.2f} |")
    print("\n| at step | the reward whose weight was changed | the others |")
    print("|---|---|---|")
    for horizon in horizons:
        weighed = [one for one in found if one.setting.split()[0] in COMPONENTS]
        cells = []
        for is_own in (True, False):
            own = [one for one in weighed if (one.setting.split()[0] == one.component) is is_own]
            cells.append(hits((one.first, one.came[horizon], by_setting(one)) for one in own))
        print(f"| {horizon} | " + " | ".join(cells) + " |")


def main() -> None:
    """Run what is missing and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path("whatif-bench"))
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--no-train", action="store_true", help="take the runs that are there")
    options = parser.parse_args()
    root = options.root.resolve()
    root.mkdir(parents=True, exist_ok=True)
    report(trials(root, options.seeds, options.steps, makes=not options.no_train))


if __name__ == "__main__":
    main()
