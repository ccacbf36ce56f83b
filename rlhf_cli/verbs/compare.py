"""rlhf compare RUN...                  what differs in the configurations, each reward at start and end. RUN is a run
folder, a sweep folder or a folder of runs
"""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from rlhf_cli.errors import EXIT_OK, Problems, RunError
from rlhf_cli.runs.run_folder import expand
from rlhf_cli.runs.run_summary import summarise_readable
from rlhf_cli.screen.comparison_table import show_comparison, show_left_out


def run(argv: list[str]) -> int:
    """Print a comparison of the runs that `argv` names; returns the exit code.

    A run that cannot be read is left out, and it is said why. Raises RunError where none is named, Problems where none
    can be read.
    """
    if not argv:
        raise RunError("no run was named", expected="run folders", hint="rlhf compare runs/quickstart")
    rows, problems = summarise_readable(expand([Path(word) for word in argv]))
    if not rows:
        raise problems[0] if len(problems) == 1 else Problems(list(problems))
    console = Console()
    show_comparison(console, rows)
    show_left_out(console, problems)
    return EXIT_OK
