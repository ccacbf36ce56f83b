"""Diagnose a run folder."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, dataclass

from rlhf_cli.analysis.diagnosis import outcome_findings, policy_findings, reward_findings, time_findings
from rlhf_cli.analysis.diagnosis.finding import SEVERITIES, CheckResult, Finding, PassedCheck, RunSetup, SkippedCheck
from rlhf_cli.analysis.diagnosis.logged import Log
from rlhf_cli.errors import RunError
from rlhf_cli.runs.metrics_file import read_metrics
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_status import CREATED, FINISHED, QUEUED, RUNNING, Status, read_status, told_state
from rlhf_cli.tables.metrics import FINDING_KINDS

CHECKS: dict[str, Callable[[Log, RunSetup], CheckResult | Iterator[CheckResult]]] = {
    "non_finite": outcome_findings.non_finite,
    "reward_errors": reward_findings.reward_errors,
    "dead_reward": reward_findings.dead_reward,
    "gate": reward_findings.gate,
    "no_deviation": outcome_findings.no_deviation,
    "overoptimised": outcome_findings.overoptimised,
    "learning": outcome_findings.learning,
    "kl": policy_findings.kl,
    "truncation": policy_findings.truncation,
    "length": policy_findings.length,
    "entropy": policy_findings.entropy,
    "redundant": reward_findings.redundant,
    "one_reward": reward_findings.one_reward,
    "clipping": policy_findings.clipping,
    "explained_variance": policy_findings.explained_variance,
    "value_loss": policy_findings.value_loss,
    "time": time_findings.time_spent,
}
"""Map kind -> check, which returns one result or yields at least one."""

_OF_REWARDS = frozenset(FINDING_KINDS) - {"non_finite", "overoptimised", "learning", "time"}
"""Kinds that need rewards, and so do not apply to a trainer that learns from rows."""


@dataclass(frozen=True)
class Diagnosis:
    """All results: findings, worst first, passed checks, and checks that were impossible."""

    findings: tuple[Finding, ...]
    fine: tuple[PassedCheck, ...]
    unseen: tuple[SkippedCheck, ...]


def run_check(kind: str, log: Log, setup: RunSetup) -> list[CheckResult]:
    """Return the results of one check on a log."""
    results = CHECKS[kind](log, setup)
    return [results] if isinstance(results, CheckResult) else list(results)


def look(log: Log, setup: RunSetup, kinds: Collection[str] | None = None) -> Diagnosis:
    """Return the results of these kinds of checks on a log; None for all."""
    applies = {kind: bool(log.rewards()) or kind not in _OF_REWARDS or not log.num_events for kind in CHECKS}
    checked = [kind for kind in CHECKS if applies[kind] and (kinds is None or kind in kinds)]
    results = [one for kind in checked for one in run_check(kind, log, setup)]
    findings = [one for one in results if isinstance(one, Finding)]
    return Diagnosis(
        tuple(sorted(findings, key=lambda one: SEVERITIES.index(one.severity))),
        tuple(one for one in results if isinstance(one, PassedCheck)),
        tuple(one for one in results if isinstance(one, SkippedCheck)),
    )


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
    def has_ended_well(self) -> bool:
        """Return whether the run finished, or was stopped by one of its own rules."""
        return self.status.state == FINISHED

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
    """Return the same, but with a one-line `problem` instead of a RunError."""
    try:
        return diagnose(folder)
    except RunError as error:
        nothing = Diagnosis((), (), ())
        got = str(error.got).partition("\n")[0]
        return RunDiagnosis(folder, Status("unreadable"), nothing, 0, f"{error.what}: {got}")
