"""rlhf resume RUN [key=value ...]     go on with an interrupted run from its last whole checkpoint
rlhf resume SWEEP [-j N]            run what is missing of a sweep, was stopped or killed, or has failed

key=value changes the run from here on. What leaves the result alone is taken and shown: more steps where no schedule
hangs on them, when to save, log and evaluate, track, guards, launch's times. What does not is refused, all at once.

  --allow KEY ...  go on although this key (or section) is another one; or `data`, `code`, `config`, for files that
                   have changed since the run was begun
  --take-over      go on with a run that another machine left without a word, where its process is gone
  --trust          run the reward files and other code that the run names, though somebody else made it
  --dry-run        show what would be run, and run nothing
  --json           what came of it as one object, at the end; what is shown meanwhile goes to stderr

of a sweep
  --failed         only the runs that have failed
  -j, --jobs N     so many runs at a time
  --watch METRIC   the metric that the table shows
  -v, --verbose    the panels of every run
"""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from rlhf_cli.cli.output import print_json
from rlhf_cli.display.terminal import Screen
from rlhf_cli.errors import EXIT_OK, RunError
from rlhf_cli.jobs.one_run import refuse_foreign_code, resume_once, say_finished, show_plan
from rlhf_cli.jobs.prepare import is_run_name, prepare_from
from rlhf_cli.jobs.resuming import ResumeOptions, resume_options, resumed
from rlhf_cli.jobs.usage import Options, read_options
from rlhf_cli.runs.run_folder import RunFolder, names_a_run, open_run
from rlhf_cli.runs.run_status import FINISHED, QUEUED, newest_run, own_job_id, read_status, run_result, with_newest
from rlhf_cli.sweeps.go_on import go_on
from rlhf_cli.sweeps.sweep_folder import is_sweep, refuse_of_sweeps, sweep_options


def run(argv: list[str]) -> int:
    """Go on with the run that `argv` names; returns the exit code.

    Raises RunError where something else was typed than the run was begun with, and while it is being trained.
    """
    options = read_options(__doc__, argv, verb="resume")
    how, words = resume_options(options), options.words
    sweeps = [word for word in words if is_sweep(Path(word))]
    if len(sweeps) == 1:
        words.remove(sweeps[0])
        end = go_on(Path(sweeps[0]), how, sweep_options(options), words)
        if options.as_json:
            print_json(end.as_json())
        return end.code
    folder = _resume(Screen(), words, how, options)
    if options.as_json:
        print_json(run_result(folder))
    return EXIT_OK


def _resume(console: Console, words: list[str], how: ResumeOptions, options: Options) -> RunFolder:
    """Go on with one run and return its folder."""
    named = [word for word in words if names_a_run(word)]
    if len(named) != 1:
        raise RunError(
            "one run is resumed at a time", got=" ".join(named) or "nothing", hint=with_newest("rlhf resume")
        )
    words.remove(named[0])
    if is_run_name(named[0]):
        raise _by_name(named[0])
    folder = open_run(Path(named[0]))
    refuse_of_sweeps(options, "rlhf resume SWEEP")
    status = read_status(folder)
    if not words and not how.allowed and status.state == FINISHED:
        say_finished(console, folder)  # nothing was typed that it could be judged by
        return folder
    if status.state == QUEUED and status.job_id != own_job_id():
        raise RunError(
            "the run is queued: Slurm will start it",
            where=str(folder.path),
            got=f"job {status.job_id}",
            hint=f"rlhf status {folder.shown}, or scancel {status.job_id}",
        )
    refuse_foreign_code(folder, trust=how.trust, command=f"rlhf resume {folder.shown}")
    going_on = resumed(folder, prepare_from(folder, words), how.allowed)
    if options.on("--dry-run") and going_on.plan is not None:
        show_plan(console, going_on.prepared, going_on.plan, earlier=folder)
    else:
        resume_once(console, going_on, take_over=how.take_over)
    return folder


def _by_name(word: str) -> RunError:
    """Return the error that says which run may be meant by `run:NAME`, which everywhere else is one that is done."""
    newest = newest_run(Path("runs", word.partition(":")[2]))
    return RunError(
        "run:NAME is a run that has finished, and there is nothing to go on with",
        got=word,
        expected="the folder of a run that was interrupted",
        hint=f"rlhf resume {newest.shown}" if newest is not None else with_newest("rlhf resume"),
    )
