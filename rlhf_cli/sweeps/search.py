"""Run a search: Optuna proposes trials one by one and learns their results.

This is Optuna's ask-and-tell interface (https://optuna.readthedocs.io, "Ask-and-Tell Interface"): we run the trials,
Optuna proposes them. The storage is Optuna's journal, one JSON object per line in the sweep's folder, so a stopped
search can resume.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from rlhf_cli.config.schema.launch_sections import Sweep
from rlhf_cli.display.sweep_tables import PRUNED, TrialRow, show_best_trials, show_search
from rlhf_cli.errors import EXIT_OK, ConfigError, RunError, UserError
from rlhf_cli.launch.resuming import resumed
from rlhf_cli.plan.prepare import prepare_from
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_status import FINISHED, PREEMPTED, RunState, Status, update_status
from rlhf_cli.runs.writer_lock import only_writer
from rlhf_cli.sweeps.checked_jobs import (
    ReadyJob,
    add_job,
    begin_sweep,
    checked,
    freeze,
    new_sweep_folder,
    ready_again,
    refuse_unlogged_watch,
    typed_words,
)
from rlhf_cli.sweeps.job_watch import JobWatch
from rlhf_cli.sweeps.outcome import SweepEnd, print_folder, report
from rlhf_cli.sweeps.run_jobs import run_jobs
from rlhf_cli.sweeps.search_space import (
    Objective,
    SearchPlan,
    Space,
    few_digits,
    never_logged,
    search_plan,
    value_so_far,
    without_section,
)
from rlhf_cli.sweeps.sweep_grid import short_keys
from rlhf_cli.sweeps.sweep_options import SWEEP_FILE, ResumeOptions, SweepOptions

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial

JOURNAL = "search.jsonl"
_NAME = "search"
_JOB = "job"
_LEFT_AFTER_HALVING = 3
"""One trial in this many continues at each rung. arXiv 1810.05934 uses 4; 3 wastes less of a search of about forty."""
_FIRST_RUNG_PERCENT = 11
"""No trial is stopped before this percentage of its training. Halving checks again at 33 % and 99 %."""
_MOST_REFUSED = 5
"""After this many invalid proposals in a row, the space is wrong rather than the proposals."""


class Trials:
    """The jobs of a search.

    Those that an earlier command left unfinished come first, then new ones up to the requested number.
    """

    def __init__(
        self, folder: Path, plan: SearchPlan, study: SearchStudy, say: Callable[[str], object], allowed: ResumeOptions
    ) -> None:
        self._allowed = allowed
        self._folder = folder
        self._plan = plan
        self._study = study
        self._say = say
        self._number_of: dict[str, int] = {}
        self._left = [trial for trial in study.trials() if trial.state == "running"]
        self._asked = len(study.trials())
        self._pruned: set[int] = set()

    @property
    def num_to_come(self) -> int:
        """Return how many jobs are still to be created or resumed, as far as is known."""
        return len(self._left) + max(0, self._plan.sweep.trials - self._asked)

    def next_job(self) -> ReadyJob | None:
        """Return the next trial, frozen, or None if there are no more.

        Raise the UserError of an invalid proposal if it is the last of several in a row.
        """
        while self._left:
            trial = self._left.pop(0)
            if trial.job is not None and (self._folder / trial.job / "config.yaml").is_file():
                run = RunFolder(self._folder / trial.job)
                begun = resumed(run, prepare_from(run, []), self._allowed.allowed)
                self._number_of[trial.job] = trial.number
                return ready_again(begun, trial.job, take_over=self._allowed.take_over)
            self._study.tell(trial.number, None)  # killed between its proposal and its freezing
        refused = 0
        while self._asked < self._plan.sweep.trials:
            asked = self._study.ask()
            self._asked += 1
            job = self._plan.job(asked.number, asked.words)
            try:
                (trial_job,) = checked([job], adjust=without_section)
            except UserError as error:
                self._study.tell(asked.number, None)
                self._say(f"{job.name} cannot be run: {error.what}")
                refused += 1
                if refused == _MOST_REFUSED:
                    raise
                continue
            add_job(self._folder, job)
            folder = freeze(self._folder, trial_job)
            self._study.belongs_to(asked.number, job.name)
            self._number_of[job.name] = asked.number
            return ReadyJob(job.name, folder, trial_job.prepared.experiment, trial_job.plan)
        return None

    def should_stop(self, watch: JobWatch) -> bool:
        """Report a job's progress to the study, and return whether it does worse than others did at the same point."""
        number = self._number_of[watch.job.name]
        if self._plan.sweep.prune == "off" or number in self._pruned or not watch.max_steps or not watch.step:
            return False
        objective = self._plan.objectives[0]
        value = value_so_far(objective, watch.values_of(objective.metric))
        percent = 100 * watch.step // watch.max_steps
        if value is None or percent >= 100 or not self._study.report(number, percent, value):
            return False
        self._pruned.add(number)
        return True

    def ended(self, watch: JobWatch, status: Status) -> Status:
        """Report a job's result to the study, and return its status: `pruned` if it was stopped here.

        Raise RunError if it finished without ever logging an objective, because then no trial will.
        """
        number = self._number_of[watch.job.name]
        objectives = self._plan.objectives
        if status.state == PREEMPTED and number in self._pruned:
            self._study.tell(number, None, is_pruned=True)
            update_status(watch.job.folder, reason=f"{PRUNED}: others were better at step {status.step}")
            return replace(status, state=RunState.PRUNED, reason=None)
        if status.state == PREEMPTED:
            return status  # it stays a running trial, and is resumed later
        if status.state != FINISHED:
            self._study.tell(number, None)
            return status
        values = [value_so_far(objective, watch.values_of(objective.metric)) for objective in objectives]
        known = [value for value in values if value is not None]
        if len(known) == len(values):
            self._study.tell(number, known)
            return status
        self._study.tell(number, None)
        unlogged = next((objective for objective in objectives if objective.metric not in watch.logged()), None)
        if unlogged is not None and not any(trial.state == "complete" for trial in self._study.trials()):
            raise never_logged(unlogged, watch.logged(), where=watch.job.folder.shown)
        self._say(f"{watch.job.name} finished and logged no finite value of its objective")
        return status


_HOW = {"off": "", "median": ", stopped early below the median", "halving": ", and a third continues at each rung"}
_SEEDS = "seed=range(1,6)"


def run_search(console: Console, plan: SearchPlan, typed: list[str], options: SweepOptions) -> SweepEnd:
    """Run a new search, or describe it with --dry-run, and return how it ended.

    Before anything is written, raise all problems at the corners of the space, and ConfigError if Optuna is missing or
    trials would go to Slurm.
    """
    corners = checked(plan.corners(), adjust=without_section)
    if corners[0].prepared.experiment.launch.slurm is not None:
        raise ConfigError(
            "a search cannot submit its trials to Slurm, because it waits for their results",
            where="launch.slurm",
            got="launch=slurm and a search",
            expected="trials on this machine, or within one Slurm job: sbatch --wrap 'rlhf train -m ...'",
            hint="launch=auto -j N",
        )
    refuse_unlogged_watch(options.watch, [corner.prepared.experiment for corner in corners])
    folder = new_sweep_folder(corners)
    _show_heading(console, plan, folder, options)
    if options.dry_run:
        console.print("nothing was started or written")
        return SweepEnd(EXIT_OK, folder, is_dry=True)
    begin_sweep(folder, typed, list(plan.space), [])
    return SweepEnd(continue_search(console, plan, folder, options, ResumeOptions()), folder)


def read_search(folder: Path) -> SearchPlan:
    """Return the search in a folder, from its original words. Raise RunError if they no longer describe a search."""
    plan = search_plan(typed_words(folder))
    if plan is None:
        raise RunError("the words of this sweep no longer describe a search", where=str(folder / SWEEP_FILE))
    return plan


def continue_search(
    console: Console, plan: SearchPlan, folder: Path, options: SweepOptions, allowed: ResumeOptions
) -> int:
    """Run the remaining trials of a search (none with --dry-run), show the results, and return the exit code.

    Unfinished trials resume with the permissions in `allowed`. Raise RunError if another process runs the search, and
    the errors of `resumed` for a trial that cannot resume.
    """
    with only_writer(RunFolder(folder), take_over=allowed.take_over, what="sweep"):
        study = SearchStudy(folder, plan.sweep, plan.objectives, plan.space, seed=plan.seed)
        if options.dry_run:
            _show_found(console, plan, study)
            _show_left(console, plan, study, folder)
            console.print("nothing was started or written")
            return EXIT_OK
        trials = Trials(folder, plan, study, lambda line: console.print(line, style="yellow", markup=False), allowed)
        try:
            watched = options.watch or plan.objectives[0].metric
            return run_jobs(console, [], replace(options, watch=watched), to_come=trials)
        finally:
            _show_found(console, plan, study)
            _show_left(console, plan, study, folder)
            report(console, folder)
            print_folder(console, folder)


def _show_left(console: Console, plan: SearchPlan, study: SearchStudy, folder: Path) -> None:
    """Print how many trials are left, if any."""
    if left := plan.sweep.trials - sum(trial.state != "running" for trial in study.trials()):
        shown = shlex.quote(RunFolder(folder).shown)
        line = f"{left} of {plan.sweep.trials} trials are left; `rlhf resume {shown}` continues"
        console.print(line, soft_wrap=True, highlight=False, markup=False)


def _show_heading(console: Console, plan: SearchPlan, folder: Path, options: SweepOptions) -> None:
    at_once = f", {options.at_once} at a time" if options.at_once > 1 else ""
    how = f"{plan.sweep.trials} by {plan.sweep.sampler}{_HOW[plan.sweep.prune]}{at_once}"
    space = {key: str(may_be) for key, may_be in plan.space.items()}
    facts = space | {"trials": how, "folder": RunFolder(folder).shown}
    show_search(console, [*map(str, plan.objectives)], facts)


def _show_found(console: Console, plan: SearchPlan, study: SearchStudy) -> None:
    best = {trial.number for trial in study.best()}
    tried = study.trials()
    short = short_keys(list(plan.space))
    rows = [
        TrialRow(
            name=trial.job or str(trial.number),
            settings={short[key]: few_digits(value) for key, _, value in (word.partition("=") for word in trial.words)},
            values=trial.values if trial.state == "complete" else (),
            state=trial.state,
            is_best=trial.number in best,
        )
        for trial in tried
    ]
    first = next((trial for trial in tried if trial.number in best), None)
    fixed = [word for word in plan.fixed if not word.startswith("run.name=")]
    again = ["rlhf", "train", "-m", *fixed, *(first.words if first else ()), _SEEDS]
    show_best_trials(console, rows, objectives=[*map(str, plan.objectives)], again=shlex.join(again))


@dataclass(frozen=True)
class SearchTrial:
    """A trial: its number, its settings as overrides, and its result.

    `job` is the sweep's job that runs it, None until there is one. `values` has one entry per objective, or is empty if
    there are none. `state` is Optuna's name: complete, pruned, fail or running.
    """

    number: int
    job: str | None
    words: tuple[str, ...]
    values: tuple[float, ...]
    state: str


class SearchStudy:
    """The stored trials of one search, finished and running, and the sampler that proposes new ones."""

    def __init__(self, folder: Path, sweep: Sweep, objectives: Sequence[Objective], space: Space, *, seed: int) -> None:
        """Open the study in a sweep's folder, or create it. Raise ConfigError if Optuna is not installed."""
        try:
            import optuna
        except ImportError:
            raise ConfigError(
                "a search needs Optuna, which is not installed", where="sweep", hint="pip install 'rlhf-cli[search]'"
            ) from None
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._space = space
        self._distributions = {key: may_be.distribution() for key, may_be in space.items()}
        self._study: Study = optuna.create_study(
            storage=JournalStorage(JournalFileBackend(str(folder / JOURNAL))),
            study_name=_NAME,
            directions=[objective.direction for objective in objectives],
            pruner=_pruner(sweep.prune),
            load_if_exists=True,
        )
        # A resumed search needs other random numbers: with the same ones it would repeat its first trials.
        self._study.sampler = _sampler(sweep.sampler, seed + len(self._study.get_trials(deepcopy=False)))
        self._running: dict[int, Trial] = {}

    def ask(self) -> SearchTrial:
        """Return the next trial."""
        trial = self._study.ask(self._distributions)
        self._running[trial.number] = trial
        return SearchTrial(trial.number, None, self._words(trial.params), (), "running")

    def belongs_to(self, number: int, job: str) -> None:
        """Record which job of the sweep a trial is."""
        self._trial(number).set_user_attr(_JOB, job)

    def report(self, number: int, percent: int, value: float) -> bool:
        """Report a trial's objective after `percent` of its training, and return whether it should be stopped.

        Only for a single objective. A second value for the same percentage is ignored.
        """
        trial = self._trial(number)
        if percent not in self._study.get_trials(deepcopy=False)[number].intermediate_values:
            trial.report(value, percent)
        return bool(trial.should_prune())

    def tell(self, number: int, values: Sequence[float] | None, *, is_pruned: bool = False) -> None:
        """Report the result of a trial. `values` is None if it failed."""
        from optuna.trial import TrialState

        state = TrialState.PRUNED if is_pruned else TrialState.COMPLETE if values is not None else TrialState.FAIL
        self._study.tell(number, values if state is TrialState.COMPLETE else None, state=state, skip_if_finished=True)
        self._running.pop(number, None)

    def trials(self) -> list[SearchTrial]:
        """Return every proposed trial, in order."""
        return [self._described(trial) for trial in self._study.get_trials(deepcopy=False)]

    def best(self) -> list[SearchTrial]:
        """Return the best trial, or the Pareto front for several objectives; empty if no trial is complete."""
        complete = [trial for trial in self._study.get_trials(deepcopy=False) if trial.state.name == "COMPLETE"]
        return [self._described(trial) for trial in self._study.best_trials] if complete else []

    def _trial(self, number: int) -> Trial:
        """Return a running trial, also one that another process asked for."""
        if number not in self._running:
            from optuna.trial import Trial

            self._running[number] = Trial(self._study, self._study.get_trials(deepcopy=False)[number]._trial_id)
        return self._running[number]

    def _described(self, trial: FrozenTrial) -> SearchTrial:
        job = trial.user_attrs.get(_JOB)
        values = tuple(float(value) for value in trial.values or ())
        words = self._words(trial.params)
        return SearchTrial(trial.number, str(job) if job is not None else None, words, values, trial.state.name.lower())

    def _words(self, params: Mapping[str, object]) -> tuple[str, ...]:
        return tuple(f"{key}={self._space[key].word(value)}" for key, value in params.items() if key in self._space)


def _sampler(name: str, seed: int) -> BaseSampler:
    from optuna.samplers import NSGAIISampler, RandomSampler, TPESampler

    kinds: dict[str, Callable[..., BaseSampler]] = {"random": RandomSampler, "nsga2": NSGAIISampler, "tpe": TPESampler}
    return kinds[name](seed=seed)


def _pruner(name: str) -> BasePruner:
    from optuna.pruners import MedianPruner, NopPruner, SuccessiveHalvingPruner

    if name == "median":
        return MedianPruner(n_warmup_steps=_FIRST_RUNG_PERCENT)
    if name == "halving":
        return SuccessiveHalvingPruner(min_resource=_FIRST_RUNG_PERCENT, reduction_factor=_LEFT_AFTER_HALVING)
    return NopPruner()
