"""Run all checks on a log."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from rlhf_cli.diagnosis import critic_findings, outcome_findings, policy_findings, reward_findings, time_findings
from rlhf_cli.diagnosis.finding import Finding, Fine, Seen, Unseen, worst_first
from rlhf_cli.diagnosis.logged import Log
from rlhf_cli.diagnosis.run_setup import RunSetup
from rlhf_cli.tables.finding_kinds import FINDING_KINDS

LOOKS: dict[str, Callable[[Log, RunSetup], Iterator[Seen]]] = {
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
    "explained_variance": critic_findings.explained_variance,
    "value_loss": critic_findings.value_loss,
    "time": time_findings.time_spent,
}
"""Map kind -> check. Each check yields at least one result."""

_OF_REWARDS = frozenset(FINDING_KINDS) - {"non_finite", "overoptimised", "learning", "time"}
"""Kinds that need rewards, and so do not apply to a trainer that learns from rows."""


@dataclass(frozen=True)
class Diagnosis:
    """All results: findings, worst first, passed checks, and checks that were impossible."""

    findings: tuple[Finding, ...]
    fine: tuple[Fine, ...]
    unseen: tuple[Unseen, ...]


def look(log: Log, setup: RunSetup, kinds: Collection[str] | None = None) -> Diagnosis:
    """Return the results of these kinds of checks on a log; None for all."""
    has_rewards = bool(log.rewards())
    seen = [
        one
        for kind, looks in LOOKS.items()
        if (kinds is None or kind in kinds) and (has_rewards or kind not in _OF_REWARDS or not log.num_events)
        for one in looks(log, setup)
    ]
    return Diagnosis(
        tuple(worst_first([one for one in seen if isinstance(one, Finding)])),
        tuple(one for one in seen if isinstance(one, Fine)),
        tuple(one for one in seen if isinstance(one, Unseen)),
    )
