"""rlhf resume RUN                      go on with an interrupted run from its last whole checkpoint

--trust          run the reward files and other code that the run names, though somebody else made it
"""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from rlhf_cli.errors import EXIT_OK, RunError
from rlhf_cli.jobs.foreign_code import refuse_foreign_code, take_as_ours
from rlhf_cli.jobs.one_run import go_on, show_run_folder
from rlhf_cli.jobs.prepare import prepare_from
from rlhf_cli.runs.run_folder import open_run
from rlhf_cli.runs.status import FINISHED, KILLED, RUNNING, read_status


def run(argv: list[str]) -> int:
    """Go on with the run that `argv` names; returns the exit code. Raises RunError while that run is being trained."""
    trust, argv = "--trust" in argv, [word for word in argv if word != "--trust"]
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
    refuse_foreign_code(folder, trust=trust, command="rlhf resume")
    prepare_from(folder, [])  # a config.yaml that somebody edited is judged like any other
    reason = f": {status.reason}" if status.state == KILLED else ""
    console.print(f"{folder.label} was {status.state} at step {status.step}{reason}")
    take_as_ours(folder)
    go_on(console, folder, resume=True)
    return EXIT_OK
