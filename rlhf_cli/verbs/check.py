"""rlhf check +exp=NAME [overrides]     everything that can be known before a run: keys, types, values, data files,
columns, reward functions, model folder, batch arithmetic. Imports no torch and writes nothing.
"""

from __future__ import annotations

from rich.console import Console

from rlhf_cli.errors import EXIT_OK
from rlhf_cli.jobs.prepare import prepare
from rlhf_cli.launch.freeze import existing_run, experiment_name
from rlhf_cli.plan.preflight import preflight
from rlhf_cli.screen.start_panel import show_start


def run(argv: list[str]) -> int:
    """Check an experiment and show what it would do; returns the exit code."""
    prepared = prepare(argv)
    experiment, composed = prepared.experiment, prepared.composed
    plan = preflight(experiment, composed)
    existing_run(experiment, composed)
    console = Console()
    show_start(console, experiment, plan, title=experiment_name(composed), folder=None)
    console.print("[green]ok[/], nothing was written")
    return EXIT_OK
