"""Compute the advantages of a run's stored rollouts with other weights, gates or aggregates, without training."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.reward_section import Reward
from rlhf_cli.errors import ConfigError, DataError
from rlhf_cli.hindsight.question import Change, Question, gate_in_words
from rlhf_cli.hindsight.round_differences import OldNew, OneSide, RoundDifference, round_difference
from rlhf_cli.hindsight.settled_again import SettledAgain, SettlesAgain
from rlhf_cli.hindsight.stored_rounds import StoredRound, StoredRounds

REPLAYED = 1e-4
"""Tolerance between the stored advantages and those of the run's own settings, in units of 1 or of the largest."""
_EXACT = 1e-6
"""Tolerance for equal advantages: below it, the KL has no part in them and a row does not count as moved."""


@dataclass(frozen=True)
class Rule:
    """The settings of one reward: its weight, and its gates in words."""

    weight: str
    gate: str


@dataclass(frozen=True)
class Mover:
    """A completion whose advantage would have changed; `scores` are raw, None if missing."""

    step: int
    prompt: object
    completion: object
    scores: Mapping[str, float | None]
    total: OldNew
    advantage: tuple[float, float]


@dataclass(frozen=True)
class WhatIf:
    """The answer to one question, round by round. `rules` maps reward -> (old, new).

    `movers` are the rows with the largest changes over all rounds. `left_out` has the reason for each skipped table.
    """

    words: tuple[str, ...]
    changes: tuple[Change, ...]
    rules: Mapping[str, tuple[Rule | None, Rule | None]]
    rounds: tuple[RoundDifference, ...]
    movers: tuple[Mover, ...]
    left_out: tuple[str, ...]
    num_computed: int

    def mean(self, figure: Callable[[RoundDifference], float | None]) -> float | None:
        """Return the mean of a figure over the rounds in which it is defined."""
        found = [value for one in self.rounds if (value := figure(one)) is not None]
        return math.fsum(found) / len(found) if found else None


def what_if(
    question: Question, stored: StoredRounds, max_steps: int | None, *, recompute: bool = False, num_movers: int = 5
) -> WhatIf:
    """Return the results of the stored rounds under the new settings.

    `max_steps`: optimizer steps of the whole training, or None if unknown. Raise ConfigError if stored failures would
    have ended the run, and DataError if groups are incomplete. Errors of an aggregate and, with `recompute`, of rewards
    propagate.
    """
    _refuse_failures(question.new, stored)
    old, new = both_settle(question, max_steps, recompute=recompute)
    rounds: list[RoundDifference] = []
    movers: list[Mover] = []
    try:
        for one in stored.rounds:
            if one.num_rows % old.recipe.num_generations:
                raise DataError(
                    "the rows are no whole groups",
                    where=f"step {one.step}",
                    got=f"{one.num_rows} rows, trainer.args.num_generations={old.recipe.num_generations}",
                    expected="a table as the run has written it",
                )
            before, after, error, why = both_sides(one, old, new)
            rounds.append(round_difference(one, before, after, error, why))
            movers = _most([*movers, *_movers(one, before, after, num_movers)], num_movers)
    finally:
        old.close()
        new.close()
    return WhatIf(
        words=question.words,
        changes=question.changes,
        rules=_rules(question.old, question.new),
        rounds=tuple(rounds),
        movers=tuple(movers),
        left_out=stored.left_out,
        num_computed=new.num_computed,
    )


def both_settle(question: Question, max_steps: int | None, *, recompute: bool) -> tuple[SettlesAgain, SettlesAgain]:
    """Return the objects that settle rounds with the old and with the new settings."""
    known = question.old.rewards
    old = SettlesAgain(question.old, max_steps, known=known)
    return old, SettlesAgain(question.new, max_steps, known=known, recompute=recompute, rescored=question.rescored)


def both_sides(
    stored: StoredRound, old: SettlesAgain, new: SettlesAgain
) -> tuple[OneSide, OneSide, float | None, str | None]:
    """Return both sides of the round, the replay error of the old one, and why there are no advantages.

    RLOO includes the KL of the policy from its reference in the reward. Its part is the difference between the stored
    advantages and those of the rewards; it is the same on both sides, because the rollouts are the same.
    """
    before, after = old.settle(stored), new.settle(stored)
    was, would = before.advantages, after.advantages
    why = before.why or after.why
    error: float | None = None
    if was is not None:
        logged = torch.tensor([value or 0.0 for value in stored.numbers("advantage")])
        error = _distance(logged, was)
        if error > _EXACT and old.recipe.kl_coef and not old.recipe.is_normalized:
            penalty = _penalty(logged - was, before, old.recipe.num_generations)
            was = old.advantages(before.compared + penalty)
            error = _distance(logged, was)
            would, why = _with_penalty(penalty, after, new, why)
        if error > REPLAYED:
            why = "the KL that is in the normalised advantages cannot be told apart from the rewards"
            if not (old.recipe.kl_coef and old.recipe.is_normalized):
                why = "the run's own settings do not give the advantages that it stored"
    if why is not None:
        was = would = None
    sides = OneSide(before, was, old.recipe, old.aggregate), OneSide(after, would, new.recipe, new.aggregate)
    return *sides, error, why


def _distance(logged: Tensor, replayed: Tensor) -> float:
    return float((logged - replayed).abs().max() / max(1.0, float(logged.abs().max())))


def _penalty(beyond: Tensor, before: SettledAgain, num_generations: int) -> Tensor:
    """Return (N,) minus KL times its coefficient, up to a constant per group, so that leave-one-out gives `beyond`.

    For A_i = n/(n - 1) (k_i - mean of k) over the n rows of a group with a total; NaN for the others.
    """
    count = (~before.compared.isnan()).view(-1, num_generations).sum(dim=1).repeat_interleave(num_generations)
    return (beyond * (count - 1) / count).masked_fill(before.compared.isnan(), torch.nan)


def _with_penalty(
    penalty: Tensor, after: SettledAgain, new: SettlesAgain, why: str | None
) -> tuple[Tensor | None, str | None]:
    if why is None and bool((penalty.isnan() & ~after.compared.isnan()).any()):
        why = "the KL in the reward of rows that were left out is not stored"
    return (None if why is not None else new.advantages(after.compared + penalty)), why


def _movers(stored: StoredRound, old: OneSide, new: OneSide, count: int) -> list[Mover]:
    """Return the rows of a round whose advantage changes most, one per distinct prompt and completion."""
    if old.advantages is None or new.advantages is None:
        return []
    distance: list[float] = (new.advantages - old.advantages).abs().masked_fill(new.settled.is_unknown, 0.0).tolist()
    found: dict[str, Mover] = {}
    raw, names = new.settled.settled.raw.tolist(), new.settled.settled.names
    before, after = (side.settled.settled.row_totals.tolist() for side in (old, new))
    for row in sorted(range(len(distance)), key=distance.__getitem__, reverse=True):
        if distance[row] <= _EXACT or len(found) == count:
            break
        prompt, completion = stored.columns["prompt"][row], stored.columns["completion"][row]
        scores = {name: _number(value) for name, value in zip(names, raw[row], strict=True)}
        scores |= {name: value for name in scores if (value := stored.entry(name, row)) is not None}
        found.setdefault(
            repr((prompt, completion)),
            Mover(
                step=stored.step,
                prompt=prompt,
                completion=completion,
                scores=scores,
                total=(_number(before[row]), _number(after[row])),
                advantage=(float(old.advantages[row]), float(new.advantages[row])),
            ),
        )
    return list(found.values())


def _most(movers: list[Mover], count: int) -> list[Mover]:
    return sorted(movers, key=lambda one: abs(one.advantage[1] - one.advantage[0]), reverse=True)[:count]


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value


def _refuse_failures(new: Experiment, stored: StoredRounds) -> None:
    for name, reward in new.rewards.items():
        if reward.on_error != "raise":
            continue
        failed = next((one for one in stored.rounds if any(one.texts(f"{name}.error"))), None)
        if failed is not None:
            raise ConfigError(
                "with this setting the run would have ended",
                where=f"rewards.{name}.on_error",
                got=f"raise; it failed on a row of step {failed.step}",
                expected="exclude, or a number",
            )


def _rules(old: Experiment, new: Experiment) -> dict[str, tuple[Rule | None, Rule | None]]:
    return {
        name: (_rule(old.rewards.get(name)), _rule(new.rewards.get(name)))
        for name in dict.fromkeys([*old.rewards, *new.rewards])
    }


def _rule(reward: Reward | None) -> Rule | None:
    if reward is None:
        return None
    weight = reward.weight
    shown = f"{weight:g}" if isinstance(weight, float) else f"{weight.start:g} to {weight.end:g}"
    return Rule(shown, ", ".join(gate_in_words(gate.model_dump()) for gate in reward.gates))
