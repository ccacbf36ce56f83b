"""Derive the bounds of the toy experiments' expectations from runs with several seeds, and compare them.

    rlhf train -m +exp=quickstart seed=0,1,2,3,4 track=none
    python -m scripts.expectations runs/quickstart                 # the table of docs/how-to/expectations.md

A bound is a prediction limit: the number of one more run lies within it with a probability of 0.995 if such numbers are
normal: mean ± t(0.995, n - 1) x sd x sqrt(1 + 1/n). The expectation is rounded to the lenient side.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import stats

from rlhf_cli.analysis.verification import outcomes_of
from rlhf_cli.config.schema.run_sections import Expectation
from rlhf_cli.config.schema.section import entries_of
from rlhf_cli.plan.prepare import prepare
from rlhf_cli.runs.metric_arrays import read_columns
from rlhf_cli.runs.run_folder import read_json, runs_in
from rlhf_cli.text.json_values import section

PROBABILITY = 0.995


@dataclass(frozen=True)
class Spread:
    """The numbers of an experiment's runs, one per seed, and the limits of one more."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Their mean."""
        return float(np.mean(self.values))

    @property
    def deviation(self) -> float:
        """Their standard deviation, n - 1 in its denominator."""
        return float(np.std(self.values, ddof=1))

    @property
    def reach(self) -> float:
        """Distance from the mean to the limit of one more run."""
        num = len(self.values)
        return float(stats.t.ppf(PROBABILITY, num - 1)) * self.deviation * math.sqrt(1 + 1 / num)

    def is_kept_by(self, expectation: Expectation) -> bool:
        """Return whether an expectation allows the predicted spread."""
        return expectation.low <= self.mean - self.reach * (
            expectation.low > -math.inf
        ) and expectation.high >= self.mean + self.reach * (expectation.high < math.inf)


def main() -> None:
    """Print the table of expectations."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, help="folders of runs of one experiment each")
    options = parser.parse_args()
    print("| experiment | metric | at | n | mean | sd | least | most | limit | expected |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for folder in options.runs:
        runs = runs_in(folder)
        exp = str(section(read_json(runs[0].provenance), "choices")["exp"])
        columns = [read_columns(run.metrics) for run in runs]
        rewards = list(section(runs[0].read_config(), "rewards"))
        for name, expectation in entries_of(prepare([f"+exp={exp}"], keep_run_names=True).experiment.expect).items():
            values = (outcomes_of({name: expectation}, own, rewards, is_finished=True)[0].value for own in columns)
            print(_row(exp, expectation, Spread(tuple(values))))


def _row(exp: str, expectation: Expectation, spread: Spread) -> str:
    limits = []
    if expectation.low > -math.inf:
        limits.append(f"{spread.mean - spread.reach:.4g}")
    if expectation.high < math.inf:
        limits.append(f"{spread.mean + spread.reach:.4g}")
    kept = "" if spread.is_kept_by(expectation) else " **too strict**"
    numbers = (spread.mean, spread.deviation, min(spread.values), max(spread.values))
    shown = " | ".join(f"{number:.4g}" for number in numbers)
    words = (f"`{exp}`", f"`{expectation.metric}`", str(expectation.at), str(len(spread.values)))
    return f"| {' | '.join(words)} | {shown} | {' to '.join(limits)} | {expectation.bound}{kept} |"


if __name__ == "__main__":
    main()
