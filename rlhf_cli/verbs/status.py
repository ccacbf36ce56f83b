"""rlhf status [RUN | SWEEP | FOLDER ...]   what has become of runs: state, step, time left, checkpoint, Slurm's job

Without words it is every run under runs/, and what this user has in Slurm's line. A run that Slurm ended is shown as
what Slurm says of it: TIMEOUT, CANCELLED, NODE_FAIL.

  --json   a list of objects instead of a table; times in seconds
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from rlhf_cli.errors import EXIT_OK, UserError
from rlhf_cli.jobs.run_states import overview
from rlhf_cli.runs.found_runs import runs_below
from rlhf_cli.screen.status_table import show_overview

_ROOT = Path("runs")
_PIPE_WIDTH = 200


def run(argv: list[str]) -> int:
    """Print the state of the runs that `argv` names; returns the exit code. Raises RunError for what is no run."""
    words = [word for word in argv if word != "--json"]
    if options := [word for word in words if word.startswith("-")]:
        raise UserError("there is no such option", got=options[0], expected="--json", hint="rlhf status --help")
    places = [Path(word) for word in words]
    if not words and runs_below(_ROOT):
        places = [_ROOT]
    seen = overview(places, mine=not words)
    if len(words) < len(argv):
        print(json.dumps([asdict(row) for row in seen.rows], indent=2))
        return EXIT_OK
    # In a pipe nobody sees a table that is folded at 80 columns.
    console = Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else _PIPE_WIDTH)
    if seen.rows:
        show_overview(console, seen)
    else:
        console.print("no runs under runs/, and none in Slurm's line")
    return EXIT_OK
