"""The folder of a sweep: check all of its jobs, then write them and sweep.json, read it, and show the outcome."""

from __future__ import annotations

import contextlib
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.progress import track
from rich.text import Text

from rlhf_cli.analysis.comparison.comparison import compare, comparison_json
from rlhf_cli.analysis.comparison.logged_run import read_runs
from rlhf_cli.analysis.comparison.measures import is_shown
from rlhf_cli.analysis.verification import verify
from rlhf_cli.config.compose import composing
from rlhf_cli.config.rules.metric_rules import examples_of_metrics, unlogged
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.display.comparison_tables import show_comparison, show_left_out
from rlhf_cli.display.run_tables import shortened_line, tally
from rlhf_cli.display.sweep_progress import JobProgress
from rlhf_cli.display.terminal import show_commands
from rlhf_cli.errors import ConfigError, Problems, RunError, UserError, raise_any
from rlhf_cli.launch.freeze import create_run, experiment_name, timed_folder, writing_run
from rlhf_cli.launch.one_run import refuse_other_size
from rlhf_cli.launch.resuming import Resumed, freeze_changes
from rlhf_cli.launch.run_states import states_of, without_lost_jobs
from rlhf_cli.plan.preflight import preflight
from rlhf_cli.plan.prepare import Adjust, Prepared, prepare
from rlhf_cli.plan.run_plan import Plan
from rlhf_cli.runs.provenance import made_by
from rlhf_cli.runs.run_folder import SWEEP, RunFolder, read_json, runs_below, unreadable, write_json
from rlhf_cli.runs.run_status import CREATED, FINISHED, QUEUED, RUNNING, Status, run_result, words_in
from rlhf_cli.runs.writer_lock import read_writer
from rlhf_cli.sweeps.swept_words import SweepJob
from rlhf_cli.tables.metrics import logged_name
from rlhf_cli.text.redaction import redacted_tree

_FEW = 3
_Made = TypeVar("_Made")


@dataclass(frozen=True)
class CheckedJob:
    """A job that could start: its checked experiment and its plan."""

    job: SweepJob
    prepared: Prepared
    plan: Plan


def for_each(jobs: Iterable[SweepJob], make: Callable[[SweepJob], _Made]) -> list[_Made]:
    """Return what `make` makes of each job, or raise all problems: each once, with its jobs unless all jobs have it."""
    made: list[_Made] = []
    problems: dict[str, tuple[UserError, list[str]]] = {}
    num_jobs = 0
    for num_jobs, job in enumerate(jobs, 1):  # noqa: B007
        try:
            made.append(make(job))
        except UserError as error:
            for problem in error.problems if isinstance(error, Problems) else [error]:
                problems.setdefault(str(problem), (problem, []))[1].append(job.name)
    for problem, names in problems.values():
        more = f" and {len(names) - _FEW} more" if len(names) > _FEW else ""
        if len(names) < num_jobs:
            problem.add_note(f"  {'runs:':<10}{'  '.join(names[:_FEW])}{more}")
    raise_any(problem for problem, _ in problems.values())
    return made


def checked(
    jobs: Sequence[SweepJob], console: Console | None = None, *, adjust: Adjust | None = None
) -> list[CheckedJob]:
    """Return the jobs, each checked like a single run and composed with `adjust`; write nothing."""

    def check(job: SweepJob) -> CheckedJob:
        prepared = prepare(list(job.words), adjust=adjust)
        plan = preflight(prepared.experiment, prepared.composed, tries_rewards=True)
        refuse_other_size(None, prepared, plan.processes)
        return CheckedJob(job, prepared, plan)

    is_shown, doing = console is not None and console.is_terminal, f"checking {len(jobs)} runs"
    with composing():  # all jobs share one composition context
        return for_each(track(jobs, doing, console=console, transient=True, disable=not is_shown), check)


def new_sweep_folder(jobs: Sequence[CheckedJob], *, is_dry: bool = False) -> Path:
    """Make (`is_dry`: only name) a sweep's folder, in its experiment's or in `sweep`. Raise RunError if it exists."""
    experiment = jobs[0].prepared.experiment
    names = {experiment_name(job.prepared.composed) for job in jobs}
    parent = Path(experiment.run.root).expanduser().resolve() / (names.pop() if len(names) == 1 else "sweep")
    if experiment.run.name is None and not is_dry:
        return timed_folder(parent)
    folder = parent / (experiment.run.name or "YYYYMMDD-HHMMSS")
    if folder.exists():
        raise _exists(folder)
    if not is_dry:
        with writing_run(folder):
            folder.mkdir(parents=True)
    return folder


def _exists(folder: Path) -> RunError:
    """Return the error for a folder that exists; of a sweep at work, it says which process or jobs are."""
    sweep = RunFolder(folder)
    states = without_lost_jobs({sweep: Status(CREATED), **states_of(runs_below(folder))}).values()
    at_work = [status for status in states if status.state in (RUNNING, QUEUED)]
    writer, jobs = read_writer(sweep), dict.fromkeys(status.job_id for status in at_work if status.job_id is not None)
    if (writer is not None and writer.process.is_alive() is not False) or at_work:
        what, expected = "the sweep in this folder is running", "an unused name, or to wait for it"
        got = [writer.describe()] if writer is not None else [f"job {job_id}" for job_id in jobs]
        got += [f"{len(at_work)} runs are training or queued"]
        hint = f"run.name=ANOTHER, or rlhf status {sweep.typed}"
        return RunError(what, where=str(folder), got="; ".join(got), expected=expected, hint=hint)
    if not (folder / SWEEP).is_file():  # a single run, or anything else
        what, expected = "a folder of that name exists, and it is not a sweep", "another name"
        return RunError(what, where=str(folder), expected=expected, hint=f"run.name={folder.name}-2")
    what, expected = "the folder of the sweep already exists", "an unused name, or to resume the sweep in it"
    hint = f"run.name=ANOTHER, or rlhf resume {sweep.typed}"
    return RunError(what, where=str(folder), expected=expected, hint=hint)


@dataclass(kw_only=True, eq=False)
class ReadyJob(JobProgress):
    """A run folder to be trained. `take_over` says that its last process, on another machine, is dead."""

    experiment: Experiment
    plan: Plan
    take_over: bool = False

    def name_in_log(self, metric: str) -> str:
        """Return the name under which a metric is logged, which may have its short name."""
        return logged_name(metric, self.experiment.rewards)


def refuse_unlogged_watch(metric: str | None, experiments: Sequence[Experiment]) -> None:
    """Raise ConfigError if no experiment can log the watched metric; None is the usual one."""
    problems = [unlogged(metric, experiment) for experiment in experiments] if metric is not None else []
    if None in problems or (first := next(iter(problems), None)) is None:
        return
    why, close = first
    what, expected = f"no run of this sweep logs {metric}: {why}", examples_of_metrics(experiments[0])
    hint = f"--watch {close}" if close is not None else None
    raise ConfigError(what, where="command line", got=f"--watch {metric}", expected=expected, hint=hint)


def ready_again(begun: Resumed, *, take_over: bool) -> ReadyJob:
    """Return a frozen job, started or not, ready to run; note allowed changes in its folder."""
    assert begun.plan is not None  # it is None only for a finished run
    experiment, plan, folder = begun.prepared.experiment, begun.plan, begun.folder
    freeze_changes(begun)
    is_begun = begun.status.state != CREATED
    return ReadyJob(
        name=folder.path.name, folder=folder, experiment=experiment, plan=plan, resume=is_begun, take_over=take_over
    )


@dataclass(frozen=True)
class SweepFolder:
    """A sweep on disk, as read from its sweep.json."""

    path: Path
    jobs: Sequence[SweepJob]

    def run_of(self, job: SweepJob) -> RunFolder:
        """Return the run folder of a job."""
        return RunFolder(self.path / job.name)


def begin_sweep(folder: Path, typed: list[str], swept: Sequence[str], jobs: Sequence[SweepJob]) -> None:
    """Write sweep.json into the new folder. Raise UserError, without the folder, if it cannot be written."""
    command, now = shlex.join(["rlhf", *sys.argv[1:]]), time.strftime("%Y-%m-%dT%H:%M:%S%z")
    content = {"command": command, "overrides": typed, "created_at": now, "swept": list(swept)}
    try:
        with writing_run(folder):
            _write(folder, {**content, "jobs": [_entry(job) for job in jobs]})
    except BaseException:
        with contextlib.suppress(OSError):
            folder.rmdir()
        raise


def add_job(folder: Path, job: SweepJob) -> None:
    """Add a job to sweep.json: trials are not known when the search starts."""
    content = read_json(folder / SWEEP)
    listed = content.get("jobs")
    jobs = [*(listed if isinstance(listed, list) else []), _entry(job)]
    _write(folder, {**content, "jobs": jobs})


def _write(folder: Path, content: Mapping[str, object]) -> None:
    plain = redacted_tree(content)
    write_json(folder / SWEEP, {**plain, "made_by": made_by(words_in(plain))}, durable=True)


def _entry(job: SweepJob) -> dict[str, object]:
    return {"name": job.name, "values": dict(job.values), "overrides": list(job.words)}


def freeze(sweep: Path, job: CheckedJob) -> ReadyJob:
    """Freeze one job into the sweep's folder. Raise RunError if that is not writable."""
    name, experiment = job.job.name, job.prepared.experiment
    folder = create_run(experiment, job.prepared.composed, files=job.plan.files, at=sweep / name)
    return ReadyJob(name=name, folder=folder, experiment=experiment, plan=job.plan)


def open_sweep(folder: Path) -> SweepFolder:
    """Return the sweep in a folder. Raise RunError if its sweep.json cannot be read."""
    listed = read_json(folder / SWEEP).get("jobs")
    jobs = []
    for entry in listed if isinstance(listed, list) else []:
        try:
            jobs.append(SweepJob(str(entry["name"]), dict(entry["values"]), tuple(map(str, entry["overrides"]))))  # type: ignore[index, call-overload, arg-type]
            if "/" in jobs[-1].name or jobs[-1].name in ("", ".", ".."):  # a stranger's: it would leave this folder
                raise ValueError(f"a name of its own: {jobs[-1].name!r}")
        except (KeyError, TypeError, ValueError) as error:
            raise unreadable(folder / SWEEP, f"a job without {error}") from None
    return SweepFolder(folder.resolve(), jobs)


def show_outcome(console: Console, sweep: SweepFolder) -> None:
    """Print the comparison of a sweep's runs so far, and where the sweep and its report are."""
    folders = [run for job in sweep.jobs if (run := sweep.run_of(job)).config.is_file()]
    runs, problems = read_runs(folders, wanted=is_shown)
    if runs:
        show_comparison(console, compare(runs))
    show_left_out(console, problems)
    show_expectations(console, folders)
    report(console, sweep.path)
    shown = RunFolder(sweep.path).typed
    commands = {f"rlhf why {shown}": "the worst finding of each run"}
    show_commands(console, commands | ({f"rlhf compare {shown} --png comparison.png": "as a picture"} if runs else {}))
    print_folder(console, sweep.path)


def show_expectations(console: Console, folders: Sequence[RunFolder]) -> None:
    """Print how many runs met their expectations, or why a sweep is not judged."""
    verified = []
    for folder in folders:
        with contextlib.suppress(RunError):  # already listed as left out above
            verified.append(verify(folder))
    judged = [run for run in verified if run.outcomes]
    if judged and (line := shortened_line(judged[0].typed)) is not None:
        console.print(Text(line, "dim"), soft_wrap=True)
    elif judged:
        console.print(Text.assemble("expectations: ", tally(verified), "; rlhf verify lists them"))


def report(console: Console, folder: Path) -> None:
    """Write a sweep's report. Never raise: the training itself has succeeded."""
    runs = [RunFolder(config.parent) for config in folder.glob("*/config.yaml")]
    if all(status.state == CREATED for status in states_of(runs).values()):
        return
    from rlhf_cli.display.page.page_content import report_at_the_end
    from rlhf_cli.runs.tracking.wandb_files import unsent

    console.print(report_at_the_end(folder), soft_wrap=True, markup=False)
    if any(unsent(run.path) for run in runs):
        line = f"wandb recorded the runs offline; `rlhf sync {RunFolder(folder).typed}` sends them"
        console.print(line, soft_wrap=True, markup=False)


def print_folder(console: Console, folder: Path) -> None:
    """Print the folder of a sweep; it is the last line of every sweep."""
    console.print(f"sweep folder: {RunFolder(folder).shown}", soft_wrap=True)


def resume_hint(sweep: SweepFolder) -> str:
    """Return the line that says how to resume an unfinished sweep."""
    left = [status.state != FINISHED for status in states_of(map(sweep.run_of, sweep.jobs)).values()]
    runs = f"{sum(left)} of {len(left)} runs {'is' if sum(left) == 1 else 'are'} not done"
    return f"{runs}; `rlhf resume {RunFolder(sweep.path).typed}` continues them"


@dataclass(frozen=True)
class SweepEnd:
    """How a sweep ended: the exit code and its folder. `is_dry` is set if nothing was started of what is `planned`."""

    code: int
    folder: Path
    is_dry: bool = False
    planned: Sequence[SweepJob] = ()

    def as_json(self) -> dict[str, object]:
        """Return the existing runs of the sweep and their comparison, null if no run could be read."""
        found = runs_below(self.folder) if self.folder.is_dir() else []
        runs, problems = read_runs(found, wanted=is_shown)
        return {
            "sweep": RunFolder(self.folder).shown,
            "dry_run": self.is_dry,
            **({"planned": [_entry(job) for job in self.planned]} if self.planned else {}),
            "runs": [run_result(folder) for folder in found],
            "comparison": comparison_json(compare(runs), problems) if runs else None,
        }
