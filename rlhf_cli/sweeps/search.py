"""Run a search: Optuna proposes trials and is told their results. Its journal in the sweep's folder lets it resume."""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from rlhf_cli.config.origins import Origins
from rlhf_cli.display.sweep_progress import JobProgress
from rlhf_cli.display.terminal import facts_grid, show_blocks
from rlhf_cli.errors import EXIT_OK, ConfigError, UserError
from rlhf_cli.launch.resuming import resumed
from rlhf_cli.plan.checks.machine_checks import has_passed, without_passed_deadline
from rlhf_cli.plan.prepare import prepare_from
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_status import FINISHED, PREEMPTED, PRUNED, RUNNING, Status, read_status, update_status
from rlhf_cli.runs.writer_lock import only_writer
from rlhf_cli.sweeps import ResumeOptions, SweepOptions, sweep_folder, swept_words
from rlhf_cli.sweeps.run_jobs import JobsToCome, run_jobs
from rlhf_cli.sweeps.sweep_folder import ReadyJob, SweepEnd
from rlhf_cli.sweeps.swept_words import SearchPlan
from rlhf_cli.text.json_values import JsonTree

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler

JOURNAL = "search.jsonl"
_NAME = "search"
_JOB = "job"
_LEFT_AFTER_HALVING = 3
"""One trial in this many continues at each rung. arXiv 1810.05934 uses 4; 3 wastes less of a search of about forty."""
_FIRST_RUNG_PERCENT = 11
"""No trial is stopped before this percentage of its training. Halving checks again at 33 % and 99 %."""
_MOST_REFUSED = 5
"""After this many invalid proposals in a row, the space is wrong rather than the proposals."""


class Trials(JobsToCome):
    """The jobs of a search: those that an earlier command left unfinished, then new ones up to the requested number."""

    def __init__(self, folder: Path, plan: SearchPlan, say: Callable[[str], object], allowed: ResumeOptions) -> None:
        self.study = open_study(folder, plan)
        self._folder, self._plan, self._say, self._allowed = folder, plan, say, allowed
        known = self.study.get_trials(deepcopy=False)
        self._left = [trial for trial in known if trial.state.name == "RUNNING"]
        self._asked = len(known)
        self._trial_of: dict[str, Trial] = {}
        self._pruned: set[str] = set()
        # A resumed search has lost a deadline that had passed, like a resumed run.
        self._deadline = None if plan.must_save_by is None or has_passed(plan.must_save_by) else plan.must_save_by

    @property
    def num_to_come(self) -> int:
        return len(self._left) + max(0, self._plan.sweep.trials - self._asked)

    def next_job(self) -> ReadyJob | None:
        """Return the next trial, frozen; None if none is left or has time. Raise after several invalid proposals."""
        from optuna.trial import Trial, TrialState

        while self._left:
            left = self._left.pop(0)
            run = RunFolder(self._folder / str(left.user_attrs.get(_JOB)))
            # Killed between its proposal and its freezing, or a stranger's: the user was not asked about a foreign run.
            if run.config not in self._folder.glob("*/config.yaml"):
                self.study.tell(left.number, state=TrialState.FAIL)
                continue
            status = read_status(run, take_over=self._allowed.take_over)
            self._trial_of[run.path.name] = Trial(self.study, left._trial_id)
            if status.state == FINISHED:  # resumed on its own, or finished when the search was killed
                ended = JobProgress(name=run.path.name, folder=run)
                ended.ends(status)
                self.ended(ended, status)
            elif status.state != RUNNING:  # another command trains it
                begun = resumed(run, prepare_from(run, []), self._allowed.allowed)
                return sweep_folder.ready_again(begun, take_over=self._allowed.take_over)
        refused = 0
        while self._asked < self._plan.sweep.trials:
            if self._deadline is not None and has_passed(self._deadline, grace_s=self._plan.grace_s):
                break  # a trial would stop after its first step
            trial = self.study.ask({**self._plan.space})
            self._asked += 1
            job = self._plan.job(trial.number, trial.params)
            try:
                (checked_job,) = sweep_folder.checked([job], adjust=self._adjust)
            except UserError as error:
                self.study.tell(trial, state=TrialState.FAIL)
                self._say(f"{job.name} cannot be run: {error.what}")
                refused += 1
                if refused == _MOST_REFUSED:
                    raise
                continue
            sweep_folder.add_job(self._folder, job)
            ready = sweep_folder.freeze(self._folder, checked_job)
            trial.set_user_attr(_JOB, job.name)
            self._trial_of[job.name] = trial
            return ready
        return None

    def _adjust(self, tree: JsonTree, origins: Origins) -> None:
        swept_words.without_section(tree, origins)
        if self._deadline is None:
            without_passed_deadline(tree, origins)

    def should_stop(self, job: ReadyJob) -> bool:
        """Report a job's progress to the study, and return whether it does worse than others did at the same point."""
        if self._plan.sweep.prune == "off" or job.name in self._pruned:
            return False
        job.look()
        trial, objective = self._trial_of[job.name], self._plan.objectives[0]
        value = job.value_of(objective.metric)
        if math.isnan(value) or not job.step or not job.max_steps or job.step >= job.max_steps:
            return False
        percent = 100 * job.step // job.max_steps
        if percent not in self.study.get_trials(deepcopy=False)[trial.number].intermediate_values:
            trial.report(value, percent)
        if trial.should_prune():
            self._pruned.add(job.name)
        return job.name in self._pruned

    def ended(self, job: JobProgress, status: Status) -> Status:
        """Tell the study a job's result. Raise RunError if a finished run never logged an objective."""
        from optuna.trial import TrialState

        if status.state == PREEMPTED and job.name not in self._pruned:
            return status  # it stays a running trial, and is resumed later
        trial, state = self._trial_of[job.name], TrialState.FAIL
        objectives = self._plan.objectives
        values = [value for one in objectives if not math.isnan(value := job.value_of(one.metric))]
        if status.state == PREEMPTED:
            state = TrialState.PRUNED
            update_status(job.folder, reason=f"{PRUNED}: others were better at step {status.step}")
            status = replace(status, state=PRUNED, reason=None)
        elif status.state == FINISHED and len(values) == len(objectives):
            state = TrialState.COMPLETE
        self.study.tell(trial, values if state == TrialState.COMPLETE else None, state=state, skip_if_finished=True)
        if status.state == FINISHED and state == TrialState.FAIL:
            unlogged = next((one for one in objectives if not job.values_of(one.metric)), None)
            if unlogged is not None and not self.study.best_trials:
                raise swept_words.never_logged(unlogged, filter(job.values_of, job.logged), where=job.folder.shown)
            self._say(f"{job.name} finished and logged no finite value of its objective")
        return status


_HOW = {"off": "", "median": ", stopped early below the median", "halving": ", and a third continues at each rung"}
_SEEDS = "seed=range(1,6)"
_OF_ONE_SEARCH = ("run.name", "launch.must_save_by", "seed")
_MOST_SHOWN, _BEST = 10, "★"


def run_search(console: Console, plan: SearchPlan, typed: list[str], options: SweepOptions) -> SweepEnd:
    """Run a new search, or describe it with --dry-run. Raise all problems at its corners at once."""
    corners = sweep_folder.checked(plan.corners(), adjust=swept_words.without_section)
    if corners[0].prepared.experiment.launch.slurm is not None:
        what = "a search cannot submit its trials to Slurm, because it waits for their results"
        expected = "trials on this machine, or within one Slurm job: sbatch --wrap 'rlhf train -m ...'"
        got = "launch=slurm and a search"
        raise ConfigError(what, where="launch.slurm", got=got, expected=expected, hint="launch=auto -j N")
    sweep_folder.refuse_unlogged_watch(options.watch, [corner.prepared.experiment for corner in corners])
    folder = sweep_folder.new_sweep_folder(corners, is_dry=options.dry_run)
    at_once = f", {options.at_once} at a time" if options.at_once > 1 else ""
    space = {key: swept_words.in_words(distribution) for key, distribution in plan.space.items()}
    how = f"{plan.sweep.trials} by {plan.sweep.sampler}{_HOW[plan.sweep.prune]}{at_once}"
    aims = " and ".join(f"{'less' if one.less_is_better else 'more'} {one.metric}" for one in plan.objectives)
    console.print(Text.assemble(("search", "bold"), f" for {aims}"))
    facts = space | {"trials": how, "folder": RunFolder(folder).shown}
    console.print(facts_grid((f"  {name}", text) for name, text in facts.items()))
    if options.dry_run:
        console.print("nothing was started or written")
        return SweepEnd(EXIT_OK, folder, is_dry=True)
    sweep_folder.begin_sweep(folder, typed, list(plan.space), [])
    return SweepEnd(continue_search(console, plan, folder, options, ResumeOptions()), folder)


def continue_search(
    console: Console, plan: SearchPlan, folder: Path, options: SweepOptions, allowed: ResumeOptions
) -> int:
    """Run the remaining trials of a search, show the results, and return the exit code."""
    with only_writer(RunFolder(folder), take_over=allowed.take_over, what="sweep"):
        trials = Trials(folder, plan, lambda line: console.print(line, style="yellow", markup=False), allowed)
        if options.dry_run:
            _show_found(console, plan, trials.study, folder)
            console.print("nothing was started or written")
            return EXIT_OK
        try:
            watched = options.watch or plan.objectives[0].metric
            return run_jobs(console, [], replace(options, watch=watched), trials)
        finally:
            _show_found(console, plan, trials.study, folder)
            sweep_folder.report(console, folder)
            sweep_folder.print_folder(console, folder)


def _show_found(console: Console, plan: SearchPlan, study: Study, folder: Path) -> None:
    """Print the best trials, the command that repeats the best one, and how many trials are left, if any."""
    tried, best = study.get_trials(deepcopy=False), study.best_trials
    objectives, is_best = [*map(str, plan.objectives)], {trial.number for trial in best}
    done = [trial for trial in tried if trial.state.name == "COMPLETE"]
    states = Counter(trial.state.name.lower() for trial in tried)
    if done:
        sign = 1 if plan.objectives[0].less_is_better else -1
        best_first = sorted(done, key=lambda trial: (trial.number not in is_best, sign * trial.values[0]))
        rows = list[list[str]]()
        for trial in best_first[: max(_MOST_SHOWN, len(best) if len(objectives) > 1 else 0)]:
            name = str(trial.user_attrs.get(_JOB, trial.number)).partition(",")[0].removeprefix("trial=")
            settings = (swept_words.few_digits(str(trial.params.get(key, "-"))) for key in plan.space)
            mark = _BEST * (trial.number in is_best)
            rows.append([mark, name, *(f"{value:.4g}" for value in trial.values), *settings])
        keys = swept_words.short_keys(list(plan.space)).values()
        columns = [*zip(["", "trial", *objectives, *keys], zip(*rows, strict=True), strict=True)]
        show_blocks(console, columns[:2], columns[2:], ["" if row[0] else "dim" for row in rows])
        kind = "no trial beats these on every objective" if len(objectives) > 1 else "the best"
        console.print(f"[dim]{_BEST} {kind}; {', '.join(f'{number} {state}' for state, number in states.items())}")
        console.print("each trial has one seed, so the best was also lucky; repeat it over seeds:")
        fixed = [word for word in plan.fixed if word.partition("=")[0].lstrip("+") not in _OF_ONE_SEARCH]
        found = best[0].params.items() if best else ()
        values = {key: f"{value:.4g}" if isinstance(value, float) else value for key, value in found}
        again = shlex.join(["rlhf", "train", "-m", *fixed, *swept_words.words_of(values), _SEEDS])
        console.print(f"  {again}", markup=False, soft_wrap=True)
    else:
        console.print(f"no trial of {len(tried)} has a value", style="yellow")
    if left := plan.sweep.trials - len(tried) + states["running"]:
        is_late = plan.must_save_by is not None and has_passed(plan.must_save_by, grace_s=plan.grace_s)
        why = ", launch.must_save_by leaves no grace period" if is_late else ""
        line = f"{left} of {plan.sweep.trials} trials are left{why}; `rlhf resume {RunFolder(folder).typed}` continues"
        console.print(line, soft_wrap=True, markup=False)


def open_study(folder: Path, plan: SearchPlan) -> Study:
    """Return the study in a sweep's folder, with all its trials; create it if there is none."""
    import optuna
    from optuna.pruners import MedianPruner, NopPruner, SuccessiveHalvingPruner
    from optuna.samplers import NSGAIISampler, RandomSampler, TPESampler
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    pruners: dict[str, BasePruner] = {
        "off": NopPruner(),
        "median": MedianPruner(n_warmup_steps=_FIRST_RUNG_PERCENT),
        "halving": SuccessiveHalvingPruner(min_resource=_FIRST_RUNG_PERCENT, reduction_factor=_LEFT_AFTER_HALVING),
    }
    study = optuna.create_study(
        storage=JournalStorage(JournalFileBackend(str(folder / JOURNAL))),
        study_name=_NAME,
        directions=["minimize" if one.less_is_better else "maximize" for one in plan.objectives],
        pruner=pruners[plan.sweep.prune],
        load_if_exists=True,
    )
    # A resumed search needs other random numbers: with the same ones it would repeat its first trials.
    kinds: dict[str, Callable[..., BaseSampler]] = {"random": RandomSampler, "nsga2": NSGAIISampler, "tpe": TPESampler}
    study.sampler = kinds[plan.sweep.sampler](seed=plan.seed + len(study.get_trials(deepcopy=False)))
    return study
