"""Diagnose a run folder: all checks, and the one of where the time went."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, dataclass, field, replace
from math import ceil

from rlhf_cli.analysis.diagnosis import logged, policy_findings, reward_findings
from rlhf_cli.analysis.diagnosis.logged import CheckResult, Finding, Fix, Log, PassedCheck, RunSetup, SkippedCheck
from rlhf_cli.errors import RunError
from rlhf_cli.plan.devices import visible_gpus
from rlhf_cli.runs.heartbeat import phase_label
from rlhf_cli.runs.metrics_file import read_metrics
from rlhf_cli.runs.provenance import version_of
from rlhf_cli.runs.run_folder import RunFolder, read_json
from rlhf_cli.runs.run_status import CREATED, QUEUED, RUNNING, UNREADABLE, Status, describe_state, read_status
from rlhf_cli.tables.metrics import ELAPSED, FINDING_KINDS, OF_REWARD, SHARE
from rlhf_cli.text.json_values import JsonTree, section

_WORTH_S = 60.0  # ignore phases shorter than this
_ENOUGH = 3  # minimum number of log events: the first step warms up caches
_AIM = 0.05  # target share after saving, evaluating or logging less often
_LIMITS = {"generation": 0.7, "saving": 0.1, "logging": 0.1, "evaluation": 0.3, "waiting": 0.2, "rest": 0.3}
"""Map phase -> the share of the time above which it is a finding."""
_REWARD, _REWARD_LIMIT = OF_REWARD.removeprefix(SHARE), 0.3
_RARER = {"saving": ("save_steps", 100), "logging": ("logging_steps", 1), "evaluation": ("eval_steps", 1)}
"""Map phase -> the argument that says how often it happens, and its default."""


def time_spent(log: Log, setup: RunSetup) -> Iterator[CheckResult]:
    """Yield the phases and rewards that take too much of the time. They are only notes, because it may be intended."""
    shares = log.times.shares()
    if not shares:
        yield SkippedCheck(f"{ELAPSED} is not logged; profile=phases logs it")
        return
    if few := log.curve(ELAPSED).too_few(_ENOUGH):
        yield few
        return
    slow: list[CheckResult] = []
    for key, share in shares.items():
        reward = key.removeprefix(_REWARD) if key.startswith(_REWARD) else None
        limit = _LIMITS.get(key) if reward is None else _REWARD_LIMIT
        curve = log.curve(f"{SHARE}{key}")
        if limit is None or share < limit or log.times.seconds[key] < _WORTH_S or not len(curve):
            continue
        beside = []
        if reward is not None and len(calls := log.curve(f"rewards/{reward}/seconds")):
            beside = [calls.evidence(f"{calls.mean:.2g} s per call")]
        fixes = _shorter_phase(key, share, setup) if reward is None else _quicker_reward(reward, setup)
        shown = curve.evidence(f"{share:.0%} of {log.times.elapsed_s:.0f} s")
        what = f"{phase_label(key)} takes {share:.0%} of the time"
        slow.append(curve.finding("note", what, fixes, shown, *beside, subject=key))
    key, share = next(iter(shares.items()))
    most = PassedCheck(f"{phase_label(key)} takes the most time: {share:.0%} of {log.times.elapsed_s:.0f} s")
    yield from slow or [most]


def _shorter_phase(key: str, share: float, setup: RunSetup) -> Iterator[Fix]:
    if key in _RARER:
        argument, default = _RARER[key]
        every = setup.number(argument, default if key != "evaluation" else setup.number("logging_steps", default))
        if every >= 1:  # below that it is a share of the steps
            yield Fix(f"trainer.args.{argument}={int(every) * ceil(share / _AIM)}", f"reduces it to about {_AIM:.0%}")
    elif key == "generation" or (key == "waiting" and setup.rewards):
        now = setup.values.get
        may_use_vllm = now("launch.rollout") == "hf" and now("launch.device") != "cpu" and now("model.build") is None
        if key == "generation" and may_use_vllm and visible_gpus() and version_of("vllm"):
            yield Fix("launch.rollout=vllm", "generates several times as fast on a GPU")
        reason = "the longest row ends a batch" if key == "generation" else "the ranks wait for the longest row"
        yield Fix(f"trainer.args.max_completion_length={max(1, setup.limit // 2)}", reason)


def _quicker_reward(name: str, setup: RunSetup) -> Iterator[Fix]:
    reward = setup.rewards.get(name, {})
    if reward.get("model") is not None:
        size = reward.get("batch_size")
        rows = 4 * size if isinstance(size, int) else 64
        yield Fix(f"rewards.{name}.batch_size={rows}", "scores more rows per pass of the reward model")
        yield Fix(f"rewards.{name}.dtype=bfloat16", "halves the bytes, if the device computes in bfloat16")
        return
    at_once = section(reward, "args").get("max_concurrency")
    if isinstance(at_once, int):
        yield Fix(f"rewards.{name}.args.max_concurrency={4 * at_once}", "sends more requests at once")
    elif reward.get("environment") is None and not reward.get("isolate"):
        reason = "runs it in its own process beside the other rewards; an `async def` reward waits for all rows at once"
        yield Fix(f"rewards.{name}.isolate=true", reason)


CHECKS: dict[str, Callable[[Log, RunSetup], CheckResult | Iterator[CheckResult]]] = {
    "non_finite": policy_findings.non_finite,
    "reward_errors": reward_findings.reward_errors,
    "dead_reward": reward_findings.dead_reward,
    "gate": reward_findings.gate,
    "no_deviation": policy_findings.no_deviation,
    "overoptimised": policy_findings.overoptimised,
    "learning": policy_findings.learning,
    "kl": policy_findings.kl,
    "truncation": policy_findings.truncation,
    "length": policy_findings.length,
    "entropy": policy_findings.entropy,
    "redundant": reward_findings.redundant,
    "one_reward": reward_findings.one_reward,
    "clipping": policy_findings.clipping,
    "explained_variance": policy_findings.explained_variance,
    "value_loss": policy_findings.value_loss,
    "time": time_spent,
}
"""Map kind -> check, which returns one result or yields at least one."""

_OF_CRITIC = frozenset({"explained_variance", "value_loss"})
_OF_REWARDS = frozenset(FINDING_KINDS) - {"non_finite", "overoptimised", "learning", "time"}
"""Kinds that need rewards, and so do not apply to a trainer that learns from rows."""


@dataclass(frozen=True)
class Diagnosis:
    """All results: findings, worst first, passed checks, and checks that were impossible."""

    findings: tuple[Finding, ...]
    fine: tuple[PassedCheck, ...]
    unseen: tuple[SkippedCheck, ...]


def run_check(kind: str, log: Log, setup: RunSetup) -> list[CheckResult]:
    """Return the results of one check on a log, without suggestions that would change nothing."""
    results = CHECKS[kind](log, setup)
    found = []
    for result in [results] if isinstance(results, CheckResult) else results:
        if isinstance(result, Finding):
            result = replace(result, changes=tuple(fix for fix in result.changes if setup.changes_by(fix.words)))
        found.append(replace(result, kind=kind))
    return found


def look(log: Log, setup: RunSetup, kinds: Collection[str] | None = None) -> Diagnosis:
    """Return the results of these kinds of checks on a log; None for all."""
    left_out = frozenset() if setup.has_critic else _OF_CRITIC
    left_out |= _OF_REWARDS if log.num_events and not log.rewards() else frozenset()
    checked = [kind for kind in CHECKS if kind not in left_out and (kinds is None or kind in kinds)]
    results = [result for kind in checked for result in run_check(kind, log, setup)]
    findings = [result for result in results if isinstance(result, Finding)]
    return Diagnosis(
        tuple(sorted(findings, key=lambda finding: logged.SEVERITIES.index(finding.severity))),
        tuple(result for result in results if isinstance(result, PassedCheck)),
        tuple(result for result in results if isinstance(result, SkippedCheck)),
    )


_IN_PROGRESS = {CREATED: "has not begun", QUEUED: "is queued and has not begun", RUNNING: "is running"}


@dataclass(frozen=True)
class RunDiagnosis:
    """A run, its status, the results for its log, why speed paths are off; `problem`: why the log could not be read."""

    folder: RunFolder
    status: Status
    diagnosis: Diagnosis
    num_events: int
    problem: str | None = None
    slow_paths: JsonTree = field(default_factory=dict)

    @property
    def ending(self) -> str:
        """Return how the run ended in a line: `failed at step 13 of 120`."""
        status = self.status
        steps = f" of {status.max_steps}" if status.max_steps not in (None, status.step) else ""
        if status.state in (CREATED, QUEUED):
            return _IN_PROGRESS[status.state]
        state = _IN_PROGRESS.get(status.state) or describe_state(status.state, status.reason)
        return f"{state} at step {status.step}{steps}"

    @property
    def is_judged(self) -> bool:
        """Return whether the log was enough to say if the run learned."""
        return all(check.kind != "learning" for check in self.diagnosis.unseen)

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
            "config_edited": self.folder.is_config_edited(),
            "slow_paths": self.slow_paths,
            **asdict(self.diagnosis),
        }


def diagnose(folder: RunFolder) -> RunDiagnosis:
    """Return the status of a run and the results for its log. Raise RunError if one of its files cannot be read."""
    status = read_status(folder)
    log = Log.of(read_metrics(folder.metrics), status.max_steps)
    found = look(log, RunSetup.of(folder.read_config(), folder.shown))
    slow_paths = section(read_json(folder.provenance), "slow_paths")
    return RunDiagnosis(folder, status, found, log.num_events, slow_paths=slow_paths)


def diagnose_readable(folder: RunFolder) -> RunDiagnosis:
    """Return the same, but with a one-line `problem` instead of a RunError."""
    try:
        return diagnose(folder)
    except RunError as error:
        got = str(error.got).partition("\n")[0]
        return RunDiagnosis(folder, Status(UNREADABLE), Diagnosis((), (), ()), 0, f"{error.what}: {got}")
