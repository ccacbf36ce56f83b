"""Run every benchmark that needs only this repository and print one table: `make bench`.

    OMP_NUM_THREADS=1 python -m scripts.bench.all_measures [--pairs 5] [--only whole_step ...]

Each runs in its own process. The results are in build/bench.json, which `make bench-check` compares with a baseline.
`make bench-gpu` measures a GPU.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from scripts.bench.measures import Measure, read, table, write

ROOT = Path(__file__).parents[2]
_STEPS = ["first_step", "--against", "plain", "--steps", "60", "--trainer"]
PARTS = {
    "startup": ["startup"],
    "whole_step": ["whole_step"],
    "first_step": ["first_step"],
    "step_grpo": [*_STEPS, "grpo"],
    "step_rloo": [*_STEPS, "rloo"],
    "score_rows": ["score_rows"],
}
"""Name -> module and its options."""


def run(part: str, pairs: int, out: Path) -> list[Measure]:
    """Run one benchmark and return its measures. Raise CalledProcessError if it fails."""
    turns = "--turns" if part == "score_rows" else "--pairs"
    module, *words = PARTS[part]
    command = [sys.executable, "-m", f"scripts.bench.{module}", *words, turns, str(pairs), "--json", str(out)]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    print("$ " + " ".join(["python", *command[1:-2]]), flush=True)
    subprocess.run(command, cwd=ROOT, env=environment, check=True)
    return read(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--results", type=Path, default=Path("build/bench.json"))
    options = parser.parse_args()
    found: list[Measure] = []
    with tempfile.TemporaryDirectory() as place:
        for part in options.only:
            found += run(part, options.pairs, Path(place, f"{part}.json"))
            write(options.results, found)  # keep the results so far
    print(f"\n{table(found)}\n\n{options.results} has the same as JSON")


if __name__ == "__main__":
    main()
