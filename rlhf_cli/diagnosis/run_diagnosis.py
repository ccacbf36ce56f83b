"""Diagnose a run folder: how it ended, and the findings in its log."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from rlhf_cli.diagnosis.finding import Finding
from rlhf_cli.diagnosis.logged import Log
from rlhf_cli.diagnosis.look import Diagnosis, look
from rlhf_cli.diagnosis.run_setup import RunSetup
from rlhf_cli.errors import RunError
from rlhf_cli.runs.metrics_file import read_metrics
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_status import CREATED, FINISHED, QUEUED, RUNNING, Status, read_status, told_state

_IN_PROGRESS = {CREATED: "has not begun", QUEUED: "is queued and has not begun", RUNNING: "is running"}


@dataclass(frozen=True)
class RunDiagnosis:
    """A run, its status, and the results for its log; `problem` is the error if the log could not be read."""

    folder: RunFolder
    status: Status
    diagnosis: Diagnosis
    num_events: int
    problem: str | None = None

    @property
    def ending(self) -> str:
        """Return how the run ended in a line: `failed at step 13 of 120`."""
        status = self.status
        of = f" of {status.max_steps}" if status.max_steps is not None and status.max_steps != status.step else ""
        if status.state in (CREATED, QUEUED):
            return _IN_PROGRESS[status.state]
        return f"{_IN_PROGRESS.get(status.state, told_state(status.state, status.reason))} at step {status.step}{of}"

    @property
    def worst(self) -> Finding | None:
        """Return the worst finding, or None."""
        return next(iter(self.diagnosis.findings), None)

    def as_json(self) -> dict[str, object]:
        """Return everything as JSON values."""
        return {
            "run": self.folder.shown,
            "state": self.status.state,
            "reason": self.status.reason,
            "step": self.status.step,
            "max_steps": self.status.max_steps,
            "log_events": self.num_events,
            "problem": self.problem,
            **asdict(self.diagnosis),
        }


def diagnose(folder: RunFolder) -> RunDiagnosis:
    """Return the status of a run and the results for its log. Raise RunError if one of its files cannot be read."""
    status = read_status(folder)
    log = Log.of(read_metrics(folder.metrics), status.max_steps)
    return RunDiagnosis(folder, status, look(log, RunSetup.of(folder.read_config())), log.num_events)


def diagnose_readable(folder: RunFolder) -> RunDiagnosis:
    """Return the same, but with a one-line `problem` if its files cannot be read."""
    try:
        return diagnose(folder)
    except RunError as error:
        nothing = Diagnosis((), (), ())
        got = str(error.got).partition("\n")[0]
        return RunDiagnosis(folder, Status("unreadable"), nothing, 0, f"{error.what}: {got}")


def has_ended_well(run: RunDiagnosis) -> bool:
    """Return whether the run finished, or was stopped by one of its own rules."""
    return run.status.state == FINISHED
