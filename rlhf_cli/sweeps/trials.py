"""Create the jobs of a search one by one as its study proposes them, and report each result to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from rlhf_cli.errors import RunError, UserError
from rlhf_cli.jobs.prepare import prepare_from
from rlhf_cli.jobs.resume_options import ResumeOptions
from rlhf_cli.jobs.resuming import resumed
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_status import FINISHED, PREEMPTED, Status, update_status
from rlhf_cli.screen.sweep_table import PRUNED
from rlhf_cli.sweeps.begun_jobs import goes_on
from rlhf_cli.sweeps.checked_jobs import CheckedJob, checked
from rlhf_cli.sweeps.job_watch import JobWatch
from rlhf_cli.sweeps.objective import refuse_unlogged, value_so_far
from rlhf_cli.sweeps.ready_job import ReadyJob
from rlhf_cli.sweeps.search_plan import SearchPlan, without_section
from rlhf_cli.sweeps.study import Memory
from rlhf_cli.sweeps.sweep_folder import add_job, freeze

_MOST_REFUSED = 5
"""After this many invalid proposals in a row, the space is wrong rather than the proposals."""


class Trials:
    """The jobs of a search.

    Those that an earlier command left unfinished come first, then new ones up to the requested number.
    """

    def __init__(
        self,
        folder: Path,
        plan: SearchPlan,
        memory: Memory,
        say: Callable[[str], object],
        allowed: ResumeOptions,
    ) -> None:
        self._allowed = allowed
        self._folder = folder
        self._plan = plan
        self._memory = memory
        self._say = say
        self._number_of: dict[str, int] = {}
        self._left = [trial for trial in memory.trials() if trial.state == "running"]
        self._asked = len(memory.trials())
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
                return goes_on(begun, trial.job, take_over=self._allowed.take_over)
            self._memory.tell(trial.number, None)  # killed between its proposal and its freezing
        refused = 0
        while self._asked < self._plan.sweep.trials:
            trial_number, job, error = self._propose()
            if job is not None:
                return self._ready(trial_number, job)
            refused += 1
            if error is not None and refused == _MOST_REFUSED:
                raise error
        return None

    def _propose(self) -> tuple[int, CheckedJob | None, UserError | None]:
        asked = self._memory.ask()
        self._asked += 1
        job = self._plan.job(asked.number, asked.words)
        try:
            (one,) = checked([job], adjust=without_section)
        except UserError as error:
            self._memory.tell(asked.number, None)
            self._say(f"{job.name} cannot be run: {error.what}")
            return asked.number, None, error
        add_job(self._folder, job)
        freeze(self._folder, one)
        self._memory.belongs_to(asked.number, job.name)
        return asked.number, one, None

    def _ready(self, number: int, job: CheckedJob) -> ReadyJob:
        self._number_of[job.job.name] = number
        folder = RunFolder(self._folder / job.job.name)
        return ReadyJob(job.job.name, folder, job.prepared.experiment, job.plan)

    def should_stop(self, watch: JobWatch) -> bool:
        """Report a job's progress to the study, and return whether it does worse than others did at the same point."""
        number = self._number_of[watch.job.name]
        if self._plan.sweep.prune == "off" or number in self._pruned or not watch.max_steps or not watch.step:
            return False
        objective = self._plan.objectives[0]
        value = value_so_far(objective, watch.values_of(objective.metric))
        percent = 100 * watch.step // watch.max_steps
        if value is None or percent >= 100 or not self._memory.report(number, percent, value):
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
            self._memory.tell(number, None, is_pruned=True)
            update_status(watch.job.folder, reason=f"{PRUNED}: others were better at step {status.step}")
            return replace(status, state=PRUNED, reason=None)
        if status.state == PREEMPTED:
            return status  # it stays a running trial, and is resumed later
        if status.state != FINISHED:
            self._memory.tell(number, None)
            return status
        values = [value_so_far(objective, watch.values_of(objective.metric)) for objective in objectives]
        known = [value for value in values if value is not None]
        if len(known) == len(values):
            self._memory.tell(number, known)
            return status
        self._memory.tell(number, None)
        try:
            refuse_unlogged(objectives, watch.logged(), where=watch.job.folder.shown)
        except RunError:
            if not any(trial.state == "complete" for trial in self._memory.trials()):
                raise
        self._say(f"{watch.job.name} has finished without a number for its objective")
        return status
