"""rlhf status [RUN | SWEEP | FOLDER ...]   the state of runs: step, time left, checkpoint, Slurm job

Without words it shows every run under runs/, and this user's jobs in Slurm's queue. A run that Slurm ended shows
Slurm's state: TIMEOUT, CANCELLED, NODE_FAIL.

  --json   print a list of objects instead of a table; times in seconds
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from rlhf_cli.cli.options import Options
from rlhf_cli.cli.output import print_result
from rlhf_cli.cli.run_arguments import place_of
from rlhf_cli.display.run_tables import show_overview
from rlhf_cli.launch.run_states import overview
from rlhf_cli.runs.run_folder import FIRST_RUN, runs_below

_ROOT = Path("runs")


def run(options: Options) -> int:
    """Print the state of the named runs and return the exit code. Raise RunError for a path that is not a run."""
    words = options.words
    places = [place_of(word, where="rlhf status") for word in words]
    if not words and runs_below(_ROOT):
        places = [_ROOT]
    rows, notice = overview(places, mine=not words)

    def show(console: Console) -> None:
        if rows:
            show_overview(console, rows, notice)
        else:
            console.print(f"no runs under runs/, and none in Slurm's queue; {FIRST_RUN} makes one")

    return print_result(options, lambda: [asdict(row) for row in rows], show)
