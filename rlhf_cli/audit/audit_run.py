"""Run the audit of a checked experiment: choose rows and kinds, estimate the cost, skip unreachable rewards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlhf_cli.audit.attack import Plan, attack
from rlhf_cli.audit.audit_result import AuditResult
from rlhf_cli.audit.degenerate_answers import KINDS, Kind
from rlhf_cli.audit.reachable import expensive, unreachable
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.data.first_rows import first_rows
from rlhf_cli.errors import ConfigError, DataError, Prose
from rlhf_cli.plan.data_sources import training_sources
from rlhf_cli.suggest import nearest

_ROWS, _COSTLY_ROWS = 64, 8
_WAYS_TO_WRITE_GOLD = 10


@dataclass(frozen=True)
class CostedPlan(Plan):
    """A plan with a line about its cost, to show before running; None if it is free."""

    cost: str | None = None


def chosen_kinds(typed: Sequence[str]) -> tuple[Kind, ...]:
    """Return the kinds that were typed, or all if none were. Raise ConfigError for an unknown name."""
    by_name = {kind.name: kind for kind in KINDS}
    names = [name.strip() for text in typed for name in text.split(",") if name.strip()]
    for name in names:
        if name not in by_name:
            raise ConfigError(
                f"there is no kind of answer {name!r}",
                where="--kinds",
                expected="one of " + ", ".join(by_name),
                hint=nearest(name, by_name),
            )
    return tuple(kind for kind in KINDS if kind.name in names) if names else KINDS


def plan_of(experiment: Experiment, kinds: tuple[Kind, ...], *, limit: int | None, gold: str | None) -> CostedPlan:
    """Return the plan of an audit with at most `limit` rows; None for a default that depends on the cost.

    Raise ConfigError if there are no rewards, DataError if the rows cannot be loaded.
    """
    if not experiment.rewards:
        raise ConfigError(
            "there is no reward to attack",
            where="rewards",
            got=f"trainer={experiment.trainer.name}, rewards is empty",
            expected="an experiment with rewards",
            hint="reward@rewards.NAME=exact_match, or rlhf list reward",
        )
    costly = expensive(experiment)
    rows = experiment_rows(experiment, limit or (_COSTLY_ROWS if costly else _ROWS))
    cost = None
    if costly:
        count = len(rows) * (len(kinds) + 1) + min(2, len(rows)) * (0 if gold else _WAYS_TO_WRITE_GOLD)
        each = "; ".join(f"rewards.{name} {what}" for name, what in costly.items())
        cost = f"at most {count} texts ({len(rows)} rows), each of them: {each}. --limit and --kinds make it less"
    return CostedPlan(rows, kinds, 1 if costly else None, gold, cost)


def experiment_rows(experiment: Experiment, limit: int) -> list[dict[str, object]]:
    """Return the first rows of an experiment's training data as its trainer gets them. Raise DataError."""
    data = experiment.data
    prompt = data.model_dump()["prompt"]
    sources = training_sources(data)
    rows = first_rows(sources, prompt=prompt, transcripts=data.transcripts, seed=experiment.seed, limit=limit)
    if not rows or "prompt" not in rows[0]:
        raise DataError(
            "the data has no column 'prompt'",
            where="data",
            got="columns " + ", ".join(rows[0] if rows else ()),
            expected="a prompt, which an answer is an answer to",
            hint="data.rename.prompt=COLUMN, or data.prompt='Question: {COLUMN}'",
        )
    return rows


def attack_reachable(experiment: Experiment, plan: Plan) -> AuditResult:
    """Return the audit without the unreachable rewards, which it lists.

    Raise ConfigError if no reward is left.
    """
    left_out = unreachable(experiment)
    if len(left_out) == len(experiment.rewards):
        name, why = next(iter(left_out.items()))
        raise ConfigError(
            "no reward can be asked",
            where=f"rewards.{name}",
            got=why,
            hint=Prose("start it, or say where it is: " + f"rewards.{name}.args.url=URL, rewards.{name}.model=FOLDER"),
        )
    return attack(experiment, plan, left_out=left_out)
