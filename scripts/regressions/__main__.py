"""Train with each planted regression and print which expectations notice it: the table of docs/how-to/expectations.md.

python -m scripts.regressions --folder planted                every one, in a process of its own
python -m scripts.regressions --folder planted kl_sign        some
python -m scripts.regressions --folder planted --table        the table of what has been run, nothing more
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from rlhf_cli.analysis.expectations import MISSED, VerifiedRun, verify
from rlhf_cli.display.run_tables import missed_line
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_status import FINISHED
from scripts.regressions.plants import BY_NAME, Plant


def run_planted(plant: Plant, root: Path) -> VerifiedRun:
    """Train the plant's experiment with it, unless that was done before, and return what became of its expectations."""
    run = RunFolder((root / plant.exp / plant.name).resolve())
    if not run.config.is_file():
        words = [f"+exp={plant.exp}", *plant.words, f"run.root={root}", f"run.name={plant.name}", "track=none"]
        command = [sys.executable, "-m", "scripts.regressions.planted_run", plant.name, "train", *words]
        root.mkdir(parents=True, exist_ok=True)
        with (root / f"{plant.name}.log").open("w") as log:
            subprocess.run(command, stdout=log, stderr=log, check=False)
    return verify(run)


def has_told(verified: VerifiedRun) -> bool:
    """Return whether somebody hears of the regression: something is missed, or the run did not even finish."""
    return verified.state == MISSED or verified.status.state != FINISHED


def _row(plant: Plant, verified: VerifiedRun) -> str:
    missed = [missed_line(one) for one in verified.outcomes if one.state == MISSED]
    if verified.status.state != FINISHED:
        missed.append(f"the run {verified.status.state} at step {verified.status.step}")
    told = "yes" if has_told(verified) else "**no**"
    words = " ".join((plant.exp, *plant.words))
    return f"| {plant.what} | `{words}` | {told} | {'; '.join(missed)} |"


def main() -> int:
    """Run what was asked for and print the table; returns 0 where nine of ten have been told, else 1."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*BY_NAME, []])
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    plants = [BY_NAME[name] for name in options.names or BY_NAME]
    if options.table:
        plants = [plant for plant in plants if (options.folder / plant.exp / plant.name / "config.yaml").is_file()]
    print("| planted | in | told | by what |\n|---|---|---|---|", flush=True)
    told = 0
    for plant in plants:
        verified = run_planted(plant, options.folder)
        told += has_told(verified)
        print(_row(plant, verified), flush=True)
    print(f"\n{told} of {len(plants)} were told")
    return 0 if told >= 0.9 * len(plants) else 1


if __name__ == "__main__":
    sys.exit(main())
