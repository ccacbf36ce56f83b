"""Print, for every kind of trainer, how far the weights of a run by two processes are from those by one.

    PYTHONPATH=. python scripts/bench/processes.py

The runs are those of tests/launch/test_as_many_processes.py. Beside the difference stands how far training moved the
weights it began with (the tensors of the starting model; a new head is not among them).
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from safetensors.torch import load_file

from tests.support.as_many_processes import PARTS, largest_difference, run_both, weights
from tests.support.small_runs import starting_model


def main() -> None:
    """Make all runs in an empty folder, and print one line a trainer."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        os.environ["RLHF_CACHE"] = str(place / "cache")
        os.chdir(place)
        folders = run_both(place)
        lines = ["| trainer | weights of | moved by training | 1 process - 2 |", "|---|---|---|---|"]
        for trainer, part in PARTS:
            alone, together = (weights(folders[count][trainer], part) for count in (1, 2))
            began = load_file(starting_model(folders[1][trainer]) / "model.safetensors")
            shared = began.keys() & alone.keys()
            moved = largest_difference({k: began[k] for k in shared}, {k: alone[k] for k in shared})
            lines.append(f"| {trainer} | {part} | {moved:.1e} | {largest_difference(alone, together):.1e} |")
        os.chdir("/")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
