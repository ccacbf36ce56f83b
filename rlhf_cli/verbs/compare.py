"""rlhf compare RUN...                  what differs in the configurations, each reward at start and end. RUN is a run
folder, a sweep folder or a folder of runs
"""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from rlhf_cli.errors import EXIT_OK, RunError
from rlhf_cli.runs.run_folder import expand
from rlhf_cli.runs.run_summary import summarise
from rlhf_cli.screen.comparison_table import show_comparison


def run(argv: list[str]) -> int:
    """Print a comparison of the runs that `argv` names; returns the exit code. Raises RunError where none is named."""
    if not argv:
        raise RunError("no run was named", expected="run folders", hint="rlhf compare runs/quickstart")
    show_comparison(Console(), [summarise(folder) for folder in expand([Path(word) for word in argv])])
    return EXIT_OK
