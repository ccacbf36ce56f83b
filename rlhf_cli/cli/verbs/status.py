"""rlhf status [RUN | SWEEP | FOLDER ...]   the state of runs: step, time left, checkpoint, Slurm job

Without words it shows every run under runs/, and this user's jobs in Slurm's queue. A run that Slurm ended shows
Slurm's state: TIMEOUT, CANCELLED, NODE_FAIL.

  --json   print a list of objects instead of a table; times in seconds
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from rlhf_cli.cli.output import print_json
from rlhf_cli.cli.run_arguments import place_of
from rlhf_cli.display.run_tables import show_overview
from rlhf_cli.display.terminal import wide_console
from rlhf_cli.errors import EXIT_OK
from rlhf_cli.jobs.usage import read_options
from rlhf_cli.launch.run_states import overview
from rlhf_cli.runs.run_folder import FIRST_RUN, runs_below

_ROOT = Path("runs")


def run(argv: list[str]) -> int:
    """Print the state of the runs in `argv` and return the exit code. Raises RunError for a path that is not a run."""
    options = read_options(__doc__, argv, verb="status")
    words = options.words
    places = [place_of(word, where="rlhf status") for word in words]
    if not words and runs_below(_ROOT):
        places = [_ROOT]
    seen = overview(places, mine=not words)
    if options.as_json:
        print_json([asdict(row) for row in seen.rows])
        return EXIT_OK
    console = wide_console()
    if seen.rows:
        show_overview(console, seen)
    else:
        console.print(f"no runs under runs/, and none in Slurm's line; {FIRST_RUN} makes one")
    return EXIT_OK
