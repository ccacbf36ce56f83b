"""rlhf resume RUN [key=value ...]     continue an interrupted run from its last complete checkpoint
rlhf resume SWEEP [-j N]            run the jobs of a sweep that are missing, interrupted or failed

key=value changes the run from here on. Changes that do not alter the result are accepted and shown: more steps if no
schedule depends on them, when to save, log and evaluate, track, guards, launch's times. All others are refused at once.

  --allow KEY ...  accept that this key (or section) has changed; or `data`, `code`, `config`, for files that have
                   changed since the run started
  --take-over      continue a run that another machine left without a final status, if its process is gone
  --trust          run its code, submit its jobs and ask its servers, even if another user made it
  --dry-run        show what would be run, and run nothing
  --json           print the result as one object, at the end; other output goes to stderr

of a sweep
  --failed         only the failed runs
  -j, --jobs N     number of runs at a time
  --watch METRIC   the metric that the table shows
"""

from __future__ import annotations

from pathlib import Path

from rlhf_cli.cli.options import Options
from rlhf_cli.cli.output import print_json
from rlhf_cli.cli.run_arguments import one_named
from rlhf_cli.display.terminal import Screen
from rlhf_cli.errors import EXIT_OK, RunError
from rlhf_cli.launch.freeze import refuse_foreign_code
from rlhf_cli.launch.group import Leader
from rlhf_cli.launch.one_run import planned_json, show_plan
from rlhf_cli.launch.resuming import resume_once, resumed, say_finished
from rlhf_cli.launch.run_states import without_lost_jobs
from rlhf_cli.plan.prepare import is_run_name, prepare_from
from rlhf_cli.runs.run_folder import SWEEP, open_run, typed_path
from rlhf_cli.runs.run_status import FINISHED, QUEUED, newest_run, own_job_id, read_status, run_result, with_newest
from rlhf_cli.sweeps.sweep import resume_sweep


def run(options: Options, leader: Leader | None = None) -> int:
    """Continue the run or sweep in the typed words, and return the exit code."""
    how, words = options.resume_options(), options.words
    sweeps = [word for word in words if Path(word, SWEEP).is_file()]
    if len(sweeps) == 1:
        if leader is not None:
            leader.refuse_sweep(f"rlhf resume {typed_path(Path(sweeps[0]))}")
        words.remove(sweeps[0])
        end = resume_sweep(Path(sweeps[0]), how, options.sweep_options(), words)
        if options.as_json:
            print_json(end.as_json())
        return end.code
    named = one_named(words, "rlhf resume", "a run folder, or a sweep's", finished=False)
    if is_run_name(named):
        newest = newest_run(Path("runs", named.partition(":")[2]), finished=False)
        what = "run:NAME means a finished run, which cannot be resumed"
        hint = f"rlhf resume {newest.typed}" if newest is not None else with_newest("rlhf resume", finished=False)
        raise RunError(what, got=named, expected="the folder of a run that was interrupted", hint=hint)
    folder, console = open_run(Path(named)), Screen()
    options.refuse_sweep_flags("rlhf resume SWEEP")
    status = read_status(folder)
    if status.job_id != own_job_id():
        status = without_lost_jobs({folder: status})[folder]
        if status.state == QUEUED:
            what, got = "the run is queued: Slurm will start it", f"job {status.job_id}"
            hint = f"rlhf status {folder.typed}, or scancel {status.job_id}"
            raise RunError(what, where=str(folder.path), got=got, hint=hint)
    planned = None
    if not words and not how.allowed and status.state == FINISHED:
        say_finished(console, folder)
    else:
        refuse_foreign_code(folder, trust=how.trust, command=f"rlhf resume {folder.typed}")
        run = resumed(folder, prepare_from(folder, words), how.allowed)
        if options.on("--dry-run") and run.plan is not None:
            show_plan(console, run.prepared, run.plan, earlier=folder)
            planned = {"dry_run": True, **planned_json(run.prepared, run.plan, earlier=folder)}
        else:
            resume_once(console, run, take_over=how.take_over, leader=leader)
    if options.as_json:
        print_json(planned or run_result(folder))
    return EXIT_OK
