"""Measure commands that answer at once: CPU seconds of whole processes, installed from a wheel.

    python -m scripts.bench.startup [--pairs 20] [--site FOLDER]

A wheel is built and installed into its own folder (with --site that folder is used), and its `rlhf` runs in an
empty folder with warm bytecode. The commands take turns.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from scripts.bench.measures import Measure, cost_of, table, write

ROOT = Path(__file__).resolve().parents[2]
COMMANDS: dict[str, tuple[int, float]] = {
    "--help": (0, 0.1),
    "list": (0, 0.3),
    "check +exp=quickstart rewards.brevity.wieght=0.5": (2, 0.5),
    "check +exp=quickstart": (0, 1.0),
}
"""Words after `rlhf` -> exit code, goal in CPU seconds."""


def main() -> None:
    """Install, run in turns, print medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--site", type=Path, help="where the wheel is installed; without it, build one")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    seconds: dict[str, list[float]] = {words: [] for words in COMMANDS}
    with tempfile.TemporaryDirectory() as folder:
        site = options.site or installed(Path(folder))
        empty = Path(folder) / "empty"
        empty.mkdir()
        environment = {**os.environ, "PYTHONPATH": str(site), "HOME": folder}
        for turn in range(-1, options.pairs):
            for words, (code, _) in COMMANDS.items():
                cost = cost_of([str(site / "bin" / "rlhf"), *words.split()], empty, environment, code=code)
                if turn >= 0:  # the first turn warms up
                    seconds[words].append(cost.cpu_s)
    measures = [
        Measure(
            f"startup, CPU s: rlhf {words}", "time", statistics.median(costs), COMMANDS[words][1],
            low=min(costs), high=max(costs), pairs=len(costs),
        )
        for words, costs in seconds.items()
    ]  # fmt: skip
    if options.json:
        write(options.json, measures)
    print(table(measures))


def installed(folder: Path) -> Path:
    """Build a wheel of this checkout and install it without its dependencies."""
    dist, site = folder / "dist", folder / "site"
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(dist), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    wheel = next(dist.glob("*.whl"))
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site), str(wheel)]
    subprocess.run(pip, check=True)
    return site


if __name__ == "__main__":
    main()
