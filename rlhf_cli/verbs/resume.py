"""rlhf resume RUN                      go on with an interrupted run from its last whole checkpoint"""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from rlhf_cli.errors import EXIT_OK, RunError
from rlhf_cli.launch import local
from rlhf_cli.runs.folder import open_run
from rlhf_cli.runs.status import FINISHED, RUNNING, read_status
from rlhf_cli.verbs.train import show_run_folder


def run(argv: list[str]) -> int:
    if len(argv) != 1:
        raise RunError("one run is resumed at a time", got=" ".join(argv) or "nothing", hint="rlhf resume RUN")
    folder = open_run(Path(argv[0]))
    console = Console()
    status = read_status(folder)
    if status.state == FINISHED:
        console.print(f"nothing to do: the run has finished, at step {status.step}")
        show_run_folder(console, folder)
        return EXIT_OK
    if status.state == RUNNING:
        raise RunError("the run is being trained right now", where=str(folder.path), got=f"process {status.pid}")
    console.print(f"{folder.label} was {status.state} at step {status.step}")
    local.run(folder, resume=True)
    from rlhf_cli.screen.end import show_end  # the plotting library comes with it: not before a typo is told

    show_end(console, folder)
    show_run_folder(console, folder)
    return EXIT_OK
