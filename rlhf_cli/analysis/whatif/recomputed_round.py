"""Compute the totals and advantages of stored rounds with an experiment's rewards.

Stack, gates, aggregate and truncation policy are those of training; numerics/group_advantages.py computes TRL's
advantages.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from types import SimpleNamespace

import torch
from torch import Tensor

from rlhf_cli.analysis.whatif.question import AdvantageRecipe, recipe_of
from rlhf_cli.analysis.whatif.stored_rounds import ROW, StoredRound, StoredScores
from rlhf_cli.config import trl_args
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.numerics.group_advantages import summed
from rlhf_cli.numerics.reward_columns import Fill, RunningDeviation
from rlhf_cli.plan.reward_components import component
from rlhf_cli.rewards.stack.aggregating import Aggregate, Schedule
from rlhf_cli.rewards.stack.reward_matrix import Settled
from rlhf_cli.rewards.stack.reward_stack import RewardStack
from rlhf_cli.rewards.stack.truncation import COMPONENT, Endings, leave_out_scores, settle_round
from rlhf_cli.tables import trl_values
from rlhf_cli.trainers.assemble.stack_building import aggregate_of, truncation_policy


@dataclass(frozen=True)
class RecomputedRound:
    """One round with these rewards; N rows, K rewards.

    `compared` (N,) are the totals before the trainer's baseline, without KL, NaN for a row without one. `given` (N, K)
    are the weighted rewards that sum to them. `advantages` (N,) are also without KL, or None. `is_unknown` (N,) bool,
    True = the log lacks a score that the row's group needs, so the group is excluded; `num_unknown` counts the rows
    that lack a score themselves. `why` is the reason why a round has no advantages or, if `has_totals` is False, no
    totals.
    """

    settled: Settled
    recipe: AdvantageRecipe
    aggregate: Aggregate
    compared: Tensor
    given: Tensor
    advantages: Tensor | None
    is_unknown: Tensor
    num_unknown: int
    why: str | None
    has_totals: bool


class RoundRecomputer:
    """Computes the rounds of a run one after another, like a training with these rewards.

    `max_steps` are the optimizer steps of the whole training, for relative weight schedules; None if unknown. `known`
    are the rewards in the run's own settings: other scores are from an environment.
    """

    def __init__(self, experiment: Experiment, max_steps: int | None, *, known: Collection[str]) -> None:
        self.recipe: AdvantageRecipe = recipe_of(experiment)
        self.aggregate, self.truncation = aggregate_of(experiment), truncation_policy(experiment)
        self.scores = {name: StoredScores(name) for name in experiment.rewards}
        components = [component(name, reward, self.scores[name]) for name, reward in experiment.rewards.items()]
        # Stored scores need no timeout.
        self.stack = RewardStack([replace(one, timeout_s=None, eager=False) for one in components])
        self._max_steps = max_steps
        self._known = list(dict.fromkeys([*self.stack.names, *known, COMPONENT]))
        limit = trl_args.setting(
            trl_args.trainer(experiment.trainer.trl), experiment.trainer.trl_args, "max_completion_length"
        )
        self._limit = limit if isinstance(limit, int) else None
        self._running: dict[str, RunningDeviation] = {}
        self._next_round = 0
        self._has_gap = False

    def recompute(self, stored: StoredRound) -> RecomputedRound:
        """Return the next round."""
        components, each = self.stack.components, self.recipe.num_generations
        self._has_gap |= stored.number != self._next_round
        self._next_round = stored.number + 1
        names = [*self.stack.names, *stored.environments(self._known)]
        raw, fixed = self._evaluated(stored, names)
        unknown = set().union(*(scores.unknown for scores in self.scores.values()))
        lacks_score = torch.tensor([row in unknown for row in range(stored.num_rows)])
        is_unknown = lacks_score.view(-1, each).any(dim=1).repeat_interleave(each)
        raw[is_unknown] = fixed[is_unknown] = torch.nan
        own = self.stack.weights(stored.updates, self._max_steps or 1)
        weights = torch.tensor([*own, *[1.0] * (len(names) - len(own))], dtype=torch.float32)
        is_cut = [bool(value) for value in stored.columns[trl_values.TRUNCATED]]
        lengths = [int(value or 0) for value in stored.numbers(trl_values.TOKENS)]
        fill: Fill = "group" if self.recipe.baseline == "group" else "zero"
        settled, self._running = settle_round(
            raw,
            fixed,
            weights,
            components,
            self._running,
            names=names,
            aggregate=self.aggregate,
            num_generations=each,
            is_training=True,
            truncation=self.truncation,
            endings=Endings(torch.tensor(is_cut), torch.tensor(lengths), self._limit),
            fill=fill,
        )
        return self._with_advantages(settled, is_unknown, len(unknown))

    def _with_advantages(self, settled: Settled, is_unknown: Tensor, num_unknown: int) -> RecomputedRound:
        recipe = self.recipe
        given, weights, clip = settled.for_trl, settled.trl_weights, recipe.clip_range
        if recipe.baseline == "others":
            left_out = leave_out_scores(settled, self.aggregate, recipe.num_generations, clip)
            if left_out is not None:
                (given, weights, _), clip = left_out, None
        totals = summed(given, weights)
        if clip is not None:
            totals = totals.clamp(min=clip[0], max=clip[1])
        no_totals = self._why_no_totals(is_unknown)
        why = no_totals or recipe.why_none
        if why is None and recipe.is_over_batch and bool(is_unknown.any()):
            why = "advantages are scaled over a round, and the log lacks scores of some of its groups"
        return RecomputedRound(
            settled=settled,
            recipe=recipe,
            aggregate=self.aggregate,
            compared=totals,
            given=given * weights,
            advantages=None if why is not None else recipe.advantages(totals),
            is_unknown=is_unknown,
            num_unknown=num_unknown,
            why=why,
            has_totals=no_totals is None,
        )

    def _why_no_totals(self, is_unknown: Tensor) -> str | None:
        for one in self.stack.components:
            if one.normalize == "running" and self._has_gap:
                return (
                    f"rewards.{one.name}.normalize=running divides by all scores so far, and not all rounds are stored"
                )
            if one.normalize in ("running", "batch") and bool(is_unknown.any()):
                self._has_gap = True
                return f"rewards.{one.name}.normalize={one.normalize} divides by scores that the log lacks"
            if self._max_steps is None and isinstance(one.weight, Schedule) and one.weight.steps is None:
                return f"rewards.{one.name}.weight follows a schedule, and how long the training is to be is not known"
        return None

    def _evaluated(self, stored: StoredRound, names: list[str]) -> tuple[Tensor, Tensor]:
        """Return (N, K) raw scores and (N, K of the stack) fixed ones in float32, like TRL; NaN if missing."""
        for scores in self.scores.values():
            scores.begin(stored)
        outcomes = self.stack.evaluate(
            prompts=stored.columns["prompt"],
            completions=stored.columns["completion"],
            trainer_state=SimpleNamespace(global_step=stored.updates, max_steps=self._max_steps),
            **{ROW: list(range(stored.num_rows))},
        )
        raw = [outcomes[name].raw if name in outcomes else stored.numbers(name) for name in names]
        return _matrix(raw), _matrix([outcomes[name].fixed for name in self.stack.names])

    def close(self) -> None:
        """Stop the background work of the stack."""
        self.stack.close()


def _matrix(columns: list[list[float | None]]) -> Tensor:
    rows = [[torch.nan if value is None else value for value in column] for column in columns]
    return torch.tensor(rows, dtype=torch.float32).T.contiguous()
