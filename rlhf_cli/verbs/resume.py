"""rlhf resume RUN [key=value ...]     go on with an interrupted run from its last whole checkpoint
rlhf resume SWEEP [-j N]            run what is missing of a sweep, was stopped or killed, or has failed

key=value changes the run from here on. What leaves the result alone is taken and shown: more steps where no schedule
hangs on them, when to save, log and evaluate, track, guards, launch's times. What does not is refused, all at once.

  --allow KEY      go on although this key (or section) is another one; or `data`, `code`, `config`, for files that
                   have changed since the run was begun; repeatable
  --take-over      go on with a run that another machine left without a word, where its process is gone
  --failed         of a sweep only the runs that have failed
  -j N, --watch METRIC, -v, --dry-run    of a sweep, as in rlhf train -m
  --trust          run the reward files and other code that the run names, though somebody else made it
"""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from rlhf_cli.errors import EXIT_OK, RunError
from rlhf_cli.jobs.foreign_code import refuse_foreign_code
from rlhf_cli.jobs.one_run import resume_once, say_finished
from rlhf_cli.jobs.prepare import prepare_from
from rlhf_cli.jobs.resume_options import resume_options
from rlhf_cli.jobs.resuming import resumed
from rlhf_cli.runs.run_folder import names_a_run, open_run
from rlhf_cli.runs.run_status import FINISHED, QUEUED, own_job_id, read_status
from rlhf_cli.sweeps.go_on import go_on
from rlhf_cli.sweeps.sweep_folder import is_sweep


def run(argv: list[str]) -> int:
    """Go on with the run that `argv` names; returns the exit code.

    Raises RunError where something else was typed than the run was begun with, and while it is being trained.
    """
    options, words = resume_options(argv)
    sweeps = [word for word in words if is_sweep(Path(word))]
    if len(sweeps) == 1:
        words.remove(sweeps[0])
        return go_on(Path(sweeps[0]), options, words)
    named = [word for word in words if names_a_run(word)]
    if len(named) != 1:
        raise RunError("one run is resumed at a time", got=" ".join(named) or "nothing", hint="rlhf resume RUN")
    words.remove(named[0])
    folder, console = open_run(Path(named[0])), Console()
    status = read_status(folder)
    if not words and not options.allowed and status.state == FINISHED:
        say_finished(console, folder)  # nothing was typed that it could be judged by
        return EXIT_OK
    if status.state == QUEUED and status.job_id != own_job_id():
        raise RunError(
            "the run is queued: Slurm will start it",
            where=str(folder.path),
            got=f"job {status.job_id}",
            hint=f"rlhf status {folder.shown}; scancel {status.job_id}, to take it out of the line",
        )
    refuse_foreign_code(folder, trust=options.trust, command=f"rlhf resume {folder.shown}")
    resume_once(console, resumed(folder, prepare_from(folder, words), options.allowed), take_over=options.take_over)
    return EXIT_OK
