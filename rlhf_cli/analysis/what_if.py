"""Compute the totals and advantages of stored rounds with an experiment's rewards.

Stack, gates, aggregate, truncation policy and algorithm (algorithms/) are those of training.

The push of advantages: a step of size eta on the objective sum_i A_i log pi(y_i), taken over the distribution of
answers itself, makes pi'(y) proportional to pi(y) exp(eta A(y)). The mean of any score c then is, to first order in
eta,

    E'[c] = E[c] + eta Cov(A, c) .

So the covariance of the advantages with a reward's raw scores, within groups, is the direction in which that reward is
pushed. `push` is its estimate over a round, sum_i A_i (c_i - mean of c in the group) / n, in raw units per unit of eta.
A network does not move answers independently: docs/how-to/scoring.md measures how often the sign is right.

Shapes: N rows, groups are consecutive; NaN = no score, or no total.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

from rlhf_cli.algorithms.base import Algorithm, Given, GroupAlgorithm, shares
from rlhf_cli.algorithms.own_advantages import OwnAdvantages
from rlhf_cli.algorithms.user_function import Answer
from rlhf_cli.analysis.whatif_request import ROW, KeyChange, StoredRound, StoredRounds, StoredScores, WhatIfQuestion
from rlhf_cli.config.expand import waits_for
from rlhf_cli.config.rules.reward_rules import TOTAL
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.errors import ConfigError, DataError
from rlhf_cli.numerics.calibration import best_changes, kendall_tau_b
from rlhf_cli.numerics.score_scaling import RunningDeviation
from rlhf_cli.plan.sources_and_components import component
from rlhf_cli.plan.stack_building import aggregate_of
from rlhf_cli.rewards.stack.aggregating import Schedule, counting
from rlhf_cli.rewards.stack.reward_matrix import Settled, SettleRules, add_truncation, settle
from rlhf_cli.rewards.stack.reward_metrics import differing_groups
from rlhf_cli.rewards.stack.reward_stack import RewardStack
from rlhf_cli.tables import trl_values
from rlhf_cli.text.json_values import finite_or_none
from rlhf_cli.trainers.assemble.algorithm import algorithm_of
from rlhf_cli.truncation import COMPONENT, ENDINGS, Ending, Endings

_SCORED = ".effective"


@dataclass(frozen=True)
class RecomputedRound:
    """One round with these rewards; N rows.

    `compared` (N,) are the totals before the trainer's baseline, without KL, NaN for a row without one. `given` holds
    the weighted rewards that sum to them. `advantages` (N,) are also without KL. `answer` is that of the user's
    function. `is_unknown` (N,) bool, True = the log lacks a score that the row's group needs, so the group is excluded;
    `num_unknown` counts the rows that lack a score themselves. `why`: the round has no advantages, or no totals.
    """

    maker: RoundRecomputer
    settled: Settled
    compared: Tensor
    given: Given
    advantages: Tensor | None
    answer: Answer | None
    is_unknown: Tensor
    num_unknown: int
    why: str | None
    has_totals: bool


class RoundRecomputer:
    """Computes the rounds of a run one after another, like a training of `max_steps` (if known) with these rewards.

    `known` are the rewards in the run's own settings: other scores are from an environment.
    """

    def __init__(self, experiment: Experiment, max_steps: int | None, *, known: Collection[str]) -> None:
        self.algorithm: Algorithm = algorithm_of(experiment)
        self.num_generations = int(cast(int, experiment.trainer.setting("num_generations")))
        self.aggregate, self.truncation = aggregate_of(experiment), experiment.truncation.rule
        self._keep_groups = experiment.sampling.keep_groups
        self.scores = {name: StoredScores(name) for name in experiment.rewards}
        components = [component(name, reward, self.scores[name]) for name, reward in experiment.rewards.items()]
        # Stored scores need no timeout, and are the sums of turns.
        self.stack = RewardStack([replace(item, timeout_s=None, eager=False, per=None) for item in components])
        self._settle_rules = SettleRules(
            self.stack.components, self.aggregate, self.num_generations, self.truncation, self.algorithm.fill
        )
        self._max_steps = max_steps
        self._counted = counting(experiment.rewards)
        self._needed = waits_for(experiment.rewards, self._counted) | {*self._counted}
        self._known = list(dict.fromkeys([*self.stack.names, *known, COMPONENT]))
        self._limit = experiment.trainer.whole("max_completion_length")
        self._running: dict[str, RunningDeviation] = {}
        self._next_round = 0
        self._has_gap = False

    def recompute(self, stored: StoredRound) -> RecomputedRound:
        """Return the next round."""
        each = self.num_generations
        self._has_gap |= stored.number != self._next_round
        self._next_round = stored.number + 1
        scored = [name.removesuffix(_SCORED) for name in stored.columns if name.endswith(_SCORED)]
        by_environments = [name for name in scored if name in stored.columns and name not in self._known]
        names = [*self.stack.names, *by_environments]
        for scores in self.scores.values():
            scores.begin(stored)
        outcomes = self.stack.evaluate(completions=stored.columns["completion"], **{ROW: list(range(stored.num_rows))})
        raw = _matrix([outcomes[name].raw if name in outcomes else stored.numbers(name) for name in names])
        fixed = _matrix([outcomes[name].fixed for name in self.stack.names])
        unknown = set().union(*(self.scores[name].unknown for name in self._needed))
        lacks_score = torch.tensor([row in unknown for row in range(stored.num_rows)])
        is_unknown = lacks_score.view(-1, each).any(dim=1).repeat_interleave(each)
        raw[is_unknown] = fixed[is_unknown] = torch.nan
        own = self.stack.weights(stored.updates, self._max_steps or 1)
        weights = torch.tensor([*own, *[1.0] * (len(names) - len(own))], dtype=torch.float32)
        is_cut, kinds = [bool(value) for value in stored.columns[trl_values.TRUNCATED]], None
        if (ended := stored.columns.get(trl_values.ENDING)) is not None:
            is_cut = [self.truncation.truncates(str(ending)) for ending in ended]
            kinds = torch.tensor([ENDINGS.index(Ending(str(ending))) for ending in ended])
        lengths = [int(value or 0) for value in stored.numbers(trl_values.TOKENS)]
        endings = Endings(torch.tensor(is_cut), torch.tensor(lengths), self._limit, kinds)
        draws, size = list[Settled](), sum(stored.kept)
        for rows in (slice(first, first + size) for first in range(0, stored.num_rows, size)):
            settled, self._running = settle(
                *(raw[rows], fixed[rows], weights, self._settle_rules, self._running),
                endings=Endings(endings.is_truncated[rows], endings.lengths[rows], self._limit),
                environments=by_environments,
            )
            draws.append(settled)
        parts = ("raw", "unfilled", "effective", "divisors", "for_trl", "is_replaced")
        given = [part for part in parts if getattr(draws[0], part) is not None]
        whole: dict[str, Any] = {part: torch.cat([getattr(draw, part) for draw in draws]) for part in given}
        settled = add_truncation(replace(draws[0], **whole), self.truncation, endings)
        return self._with_advantages(settled, is_unknown, len(unknown), endings.lengths, stored.updates)

    def _with_advantages(
        self, settled: Settled, is_unknown: Tensor, num_unknown: int, lengths: Tensor, step: int
    ) -> RecomputedRound:
        algorithm, each = self.algorithm, self.num_generations
        given = algorithm.given(settled, self.aggregate, each)
        totals, no_totals = algorithm.compared(given), self._why_no_totals(is_unknown)
        why = no_totals or algorithm.why_not_replayed
        if why is None and algorithm.is_scaled_by_round and bool(is_unknown.any()):
            why = "advantages are scaled over a round, and the log lacks scores of some of its groups"
        answer = None
        if why is None and isinstance(algorithm, OwnAdvantages):
            answer = algorithm.answer(settled, lengths, each, step)
            if answer.is_by_token:
                why = "advantages.fn gives every token an advantage, and the table holds their means"
        advantages = None if why is not None else self.advantages(totals, answer)
        has_totals = no_totals is None
        return RecomputedRound(
            self, settled, totals, given, advantages, answer, is_unknown, num_unknown, why=why, has_totals=has_totals
        )

    def advantages(self, totals: Tensor, answer: Answer | None = None) -> Tensor:
        """Return the trainer's (N,) advantages of (N,) totals; those of the user's function if there is an `answer`."""
        if answer is not None:
            return torch.from_numpy(answer.advantages).float()
        assert isinstance(self.algorithm, GroupAlgorithm)
        return self.algorithm.advantages(totals, self.num_generations)

    def shares(self, side: RecomputedRound, is_answered: Tensor) -> dict[str, float]:
        """Return each reward's share of the advantages of the answered rows, as logged in training."""
        algorithm, each = self.algorithm, self.num_generations
        if side.advantages is None or not is_answered.any():
            return {}
        if side.answer is not None:
            parts = [torch.from_numpy(part)[is_answered] for part in side.answer.parts.values()]
            return shares(list(side.answer.parts), torch.stack(parts), side.advantages[is_answered]) if parts else {}
        if not (isinstance(algorithm, GroupAlgorithm) and algorithm.has_parts(self.aggregate, each)):
            return {}
        contributions = side.given.contributions[is_answered].double()
        return algorithm.shares(side.settled.names, contributions, side.advantages[is_answered].double(), each)

    def kept_groups(self, side: RecomputedRound) -> list[bool]:
        """Return for every group of all draws whether `sampling.keep_groups` keeps it; empty without that section."""
        if (keep := self._keep_groups) is None:
            return []
        settled = side.settled
        values = side.compared if keep.by == TOTAL else settled.raw[:, settled.names.index(keep.by)]
        values = values.masked_fill(settled.totals.isnan(), torch.nan)
        return list(map(bool, differing_groups(values, self.num_generations)))

    def _why_no_totals(self, is_unknown: Tensor) -> str | None:
        for item in (item for item in self.stack.components if item.name in self._counted):
            key = f"rewards.{item.name}"
            if item.normalize == "running" and self._has_gap:
                return f"{key}.normalize=running divides by all scores so far, and not all rounds are stored"
            if item.normalize in ("running", "batch") and bool(is_unknown.any()):
                self._has_gap = True
                return f"{key}.normalize={item.normalize} divides by scores that the log lacks"
            if self._max_steps is None and isinstance(item.weight, Schedule) and item.weight.steps is None:
                return f"{key}.weight follows a schedule, and the length of the training is unknown"
        return None


def _matrix(columns: list[list[float | None]], dtype: torch.dtype = torch.float32) -> Tensor:
    """Return the (N, K) values of K columns, in float32 like TRL's; NaN if missing."""
    rows = [[torch.nan if value is None else value for value in column] for column in columns]
    return torch.tensor(rows, dtype=dtype).T.contiguous()


LENGTH = "length"
_NOTHING = 1e-3
"""Smaller advantages are rounding errors of a group without deviation, divided by TRL's eps of 1e-4."""

OldNew = tuple[float | None, float | None]
"""A figure before and after; None if undefined."""


@dataclass(frozen=True)
class RoundDifference:
    """How one round would have differed. Undefined figures are None.

    `step` is the first optimizer step that learnt from the round. `num_unknown` rows lack a required score in the log:
    their groups, `num_groups` less `num_answered`, are excluded from everything. `tau` is the mean of Kendall's tau-b
    over the groups in which both totals differ; `best_changed` and `sign_changed` are shares of groups and of rows.
    `share` and `push` are by component, the latter also by `length` (tokens). `replay_error` is the distance between
    the stored advantages and those recomputed with the run's own settings. `why`: there are no advantages or totals.
    """

    step: int
    num_groups: int
    num_answered: int
    num_unknown: int
    mean_total: OldNew
    tau: float | None
    best_changed: float | None
    sign_changed: float | None
    share: Mapping[str, OldNew]
    push: Mapping[str, OldNew]
    replay_error: float | None
    why: str | None


def round_difference(
    stored: StoredRound, old: RecomputedRound, new: RecomputedRound, replay_error: float | None, why: str | None
) -> RoundDifference:
    """Return the difference of the round between both sides."""
    # A critic does not compare within groups, so rank all rows of a round together, each answered or not.
    each = old.maker.num_generations if old.maker.algorithm.compares_groups else stored.num_rows
    is_answered = ~new.is_unknown & torch.tensor(stored.kept)
    answered = is_answered.view(-1, each).any(dim=1)
    has_totals = old.has_totals and new.has_totals
    before, after = (side.compared.masked_fill(~is_answered, torch.nan) for side in (old, new))
    tau = kendall_tau_b(before, after, each)
    ranked = tau[~tau.isnan()]
    changed = best_changes(before, after, each)[answered]
    was, would = (None if side.advantages is None else side.advantages[is_answered] for side in (old, new))
    scored = dict(zip(new.settled.names, new.settled.raw.double().unbind(1), strict=True))
    columns = {name: name for name in old.settled.names if name in stored.columns}
    columns[LENGTH if LENGTH not in columns else trl_values.TOKENS] = trl_values.TOKENS  # a reward may be called length
    scored |= {name: _matrix([stored.numbers(column)], torch.float64)[:, 0] for name, column in columns.items()}
    by_score = {name: column[is_answered] for name, column in scored.items()}
    of_old, of_new = (side.maker.shares(side, is_answered) for side in (old, new))
    totals = [side.settled.row_totals[is_answered].double() for side in (old, new)]
    mean_before, mean_after = (_mean(values[~values.isnan()]) for values in totals)
    return RoundDifference(
        step=stored.step,
        num_groups=sum(stored.kept) // each,
        num_answered=int(answered.sum()),
        num_unknown=new.num_unknown,
        mean_total=(mean_before, mean_after) if has_totals else (None, None),
        tau=_mean(ranked) if has_totals else None,
        best_changed=_mean(changed.double()) if has_totals else None,
        sign_changed=None if was is None or would is None else _sign_changed(was, would),
        share={name: (of_old.get(name), of_new.get(name)) for name in {**of_old, **of_new}},
        push={name: (push(was, column, each), push(would, column, each)) for name, column in by_score.items()},
        replay_error=replay_error,
        why=why,
    )


def push(advantages: Tensor | None, scores: Tensor, num_generations: int) -> float | None:
    """Return the covariance above of (N,) advantages and (N,) scores, within groups; None if one of them is missing."""
    if advantages is None:
        return None
    grouped = scores.view(-1, num_generations)
    centred = (grouped - grouped.nanmean(dim=1, keepdim=True)).view(-1)
    products = (advantages.double() * centred)[~centred.isnan()]
    return _mean(products)


def _sign_changed(old: Tensor, new: Tensor) -> float | None:
    signs = [torch.where(side.abs() > _NOTHING, torch.sign(side), 0.0) for side in (old, new)]
    return _mean((signs[0] * signs[1] < 0).double())


def _mean(values: Tensor) -> float | None:
    return finite_or_none(float(values.mean())) if values.numel() else None


REPLAYED = 1e-4
"""Tolerance between the stored advantages and those of the run's own settings, in units of 1 or of the largest."""
_EXACT = 1e-6  # tolerance for equal advantages: below it, the KL has no part in them


@dataclass(frozen=True)
class WhatIf:
    """The answer to one question, round by round. `left_out` has the reason for each skipped table."""

    words: tuple[str, ...]
    changes: tuple[KeyChange, ...]
    rounds: tuple[RoundDifference, ...]
    left_out: tuple[str, ...]


def what_if(question: WhatIfQuestion, stored: StoredRounds, max_steps: int | None) -> WhatIf:
    """Return the results of the stored rounds under the new settings.

    Raise ConfigError if stored failures would have ended the run, and DataError if groups are incomplete.
    """
    for name, reward in question.new.rewards.items():
        if reward.on_error != "raise":
            continue
        failed = next((round_ for round_ in stored.rounds if any(round_.texts(f"{name}.error"))), None)
        if failed is not None:
            what, got = "with this setting the run would have ended", f"raise; it failed on a row of step {failed.step}"
            raise ConfigError(what, where=f"rewards.{name}.on_error", got=got, expected="exclude, or a number")
    known, rounds = question.old.rewards, list[RoundDifference]()
    old, new = (RoundRecomputer(side, max_steps, known=known) for side in (question.old, question.new))
    try:
        for round_ in stored.rounds:
            if round_.num_rows % old.num_generations:
                got = f"{round_.num_rows} rows, trainer.args.num_generations={old.num_generations}"
                what, expected = "the rows are no whole groups", "a table as the run has written it"
                raise DataError(what, where=f"step {round_.step}", got=got, expected=expected)
            before, after, error, why = recompute_both(round_, old, new)
            rounds.append(round_difference(round_, before, after, error, why))
    finally:
        old.stack.close()
        new.stack.close()
    return WhatIf(words=question.words, changes=question.changes, rounds=tuple(rounds), left_out=stored.left_out)


def recompute_both(
    stored: StoredRound, old: RoundRecomputer, new: RoundRecomputer
) -> tuple[RecomputedRound, RecomputedRound, float | None, str | None]:
    """Return the round before and after, the replay error of the old one, and why there are no advantages.

    RLOO includes the KL of the policy from its reference in the reward. Its part is the difference between the stored
    advantages and those of the rewards; it is the same on both sides, because the rollouts are the same.
    """
    before, after = old.recompute(stored), new.recompute(stored)
    was, would = before.advantages, after.advantages
    why = before.why or after.why
    error: float | None = None
    if was is not None:
        logged = torch.tensor([value or 0.0 for value in stored.numbers("advantage")])
        size = max(1.0, float(logged.abs().max()))
        error = float((logged - was).abs().max() / size)
        has_kl, is_scaled = bool(old.algorithm.kl_coef), old.algorithm.is_scaled_by_round
        if error > _EXACT and has_kl and not is_scaled:
            penalty = _penalty(logged - was, before, old.num_generations)
            was = old.advantages(before.compared + penalty)
            error = float((logged - was).abs().max() / size)
            would = new.advantages(after.compared + penalty)
            if why is None and bool((penalty.isnan() & ~after.compared.isnan()).any()):
                why = "the KL in the reward of rows that were left out is not stored"
        if error > REPLAYED:
            why = "the normalised advantages contain a KL, which cannot be separated from the rewards"
            if not (has_kl and is_scaled):
                why = "the run's own settings do not give the advantages that it stored"
    if why is None and old.kept_groups(before) != new.kept_groups(after):
        why = "sampling.keep_groups would have kept other groups"
    if why is not None:
        was = would = None
    return replace(before, advantages=was), replace(after, advantages=would), error, why


def _penalty(beyond: Tensor, before: RecomputedRound, num_generations: int) -> Tensor:
    """Return (N,) minus KL times its coefficient, up to a constant per group, so that leave-one-out gives `beyond`.

    For A_i = n/(n - 1) (k_i - mean of k) over the n rows of a group with a total; NaN for the others.
    """
    count = (~before.compared.isnan()).view(-1, num_generations).sum(dim=1).repeat_interleave(num_generations)
    return (beyond * (count - 1) / count).masked_fill(before.compared.isnan(), torch.nan)
