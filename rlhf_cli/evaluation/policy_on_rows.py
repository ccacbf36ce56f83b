"""Evaluate a policy on rows by its rewards, one or n answers a prompt.

Rewards are evaluated as in `rlhf score`: with the run's stack and aggregate, and the weights and running deviations of
its last step. The truncation policy and KL belong to the trainer and are not part of the total.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, replace
from itertools import islice
from statistics import fmean

import torch
from transformers.utils import logging as transformers_logging

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.evaluation.generation import Completion, PolicyModel, sampling_settings
from rlhf_cli.evaluation.held_out_rows import EndOfRun
from rlhf_cli.evaluation.score_completions import score
from rlhf_cli.evaluation.targets import Target
from rlhf_cli.measure.best_of_n import SampledAnswer, SampledPrompt
from rlhf_cli.measure.policy_results import (
    AnsweredPrompt,
    PartAnswers,
    PolicyEvaluation,
    WinRate,
    completions_of,
    share,
    sum_up_answers,
)
from rlhf_cli.measure.scored_pairs import Row
from rlhf_cli.numerics.intervals import Estimate
from rlhf_cli.numerics.reward_columns import RunningDeviation
from rlhf_cli.rewards.stack.scored_rows import CompletionScores, ScoredRow
from rlhf_cli.runs.run_folder import GREEDY, SAMPLED

_OTHERS = "against_"


@dataclass(frozen=True)
class Opponent:
    """The policy to compare with, and the `label` of its run for display."""

    policy: PolicyModel
    label: str


def evaluate_policy(
    policy: PolicyModel,
    experiment: Experiment,
    rows: list[Row],
    settings: Mapping[str, object],
    *,
    samples: int,
    batch_size: int,
    seed: int,
    against: Opponent | None = None,
    step: int = 0,
    max_steps: int = 1,
    running: Mapping[str, RunningDeviation] | None = None,
    trained_on: Set[bytes] = frozenset(),
    on_batch: Callable[[int], None] = lambda done: None,
) -> tuple[PolicyEvaluation, list[Row]]:
    """Return all measures of the policy, and one row per completion.

    Each prompt is answered once greedily and `samples` times with the trainer's sampling settings. `against` gets the
    same prompts and settings. Intervals are over prompts, because the samples of one prompt are not independent.
    `running` are the run's deviations by reward; `trained_on` is passed to `sum_up_answers`; `on_batch` is called with
    the number of new completions.
    """
    answered: dict[str, tuple[int, list[AnsweredPrompt]]] = {}
    for prefix, model in (("", policy), (_OTHERS, None if against is None else against.policy)):
        for name, each in ((GREEDY, 1), (SAMPLED, samples)):
            if model is not None and each:
                repeated = [row for row in rows for _ in range(each)]
                completions = model.complete(
                    [row["prompt"] for row in repeated],
                    settings,
                    greedy=name == GREEDY,
                    batch_size=batch_size,
                    seed=seed,
                    on_batch=on_batch,
                )
                answers = [answer_of(row, one) for row, one in zip(repeated, completions, strict=True)]
                answered[prefix + name] = each, answers
    everything = [one for _, answers in answered.values() for one in answers]
    settled = score_answers(experiment, everything, policy, step, max_steps, running or {})
    scored = iter(settled.rows)
    parts = {
        name: PartAnswers(each, answers, list(islice(scored, len(answers))))
        for name, (each, answers) in answered.items()
    }
    own = {name: part for name, part in parts.items() if not name.startswith(_OTHERS)}
    evaluation = replace(
        sum_up_answers(own, list(experiment.rewards), no_total=settled.no_total, trained_on=trained_on),
        settings={**settings, "samples": samples, "seed": seed},
        win_rate=None if against is None else _wins(parts, against.label),
    )
    return evaluation, completions_of(parts)


def answer_of(row: Row, completion: Completion) -> AnsweredPrompt:
    """Return a row with its answer, as a message if the prompt is a list of messages."""
    text: str | list[dict[str, str]] = completion.text
    if isinstance(row["prompt"], list):
        text = [{"role": "assistant", "content": completion.text}]
    return AnsweredPrompt(row, text, completion.ids, completion.is_truncated)


def score_answers(
    experiment: Experiment,
    answers: list[AnsweredPrompt],
    policy: PolicyModel,
    step: int,
    max_steps: int,
    running: Mapping[str, RunningDeviation],
) -> CompletionScores:
    """Score answers with an experiment's rewards, using the weights of `step` and the deviations in `running`."""
    if not experiment.rewards:
        return CompletionScores([ScoredRow(None, {}) for _ in answers])
    rows = [{name: value for name, value in one.as_row().items() if name != "is_truncated"} for one in answers]
    return score(
        experiment,
        rows,
        device=policy.device,
        decode=policy.decode,
        step=step,
        max_steps=max_steps,
        running=running,
    )


def _wins(parts: dict[str, PartAnswers], opponent: str) -> WinRate:
    """Return the share of prompts on which our total is higher, ties counting a half; for samples, over all pairs."""

    def compared(name: str) -> Estimate:
        ours, theirs = parts[name], parts[_OTHERS + name]
        shares = []
        for start in range(0, len(ours.answers), ours.each):
            span = range(start, start + ours.each)
            both = [(ours.scored[a].total, theirs.scored[b].total) for a in span for b in span]
            points = [(1.0 if a > b else 0.5 if a == b else 0.0) for a, b in both if a is not None and b is not None]
            if points:
                shares.append(fmean(points))
        return share(shares)

    return WinRate(compared(GREEDY), compared(SAMPLED) if SAMPLED in parts else None, opponent)


BATCH = 32
"""Default number of completions sampled at once. Another number changes the random numbers."""


@dataclass(frozen=True)
class Sampled:
    """Prompts with their scored answers, one output row per completion, and the sampling settings."""

    prompts: list[SampledPrompt]
    rows: list[Row]
    settings: dict[str, object]


def sample(
    target: Target,
    experiment: Experiment,
    rows: list[Row],
    end: EndOfRun,
    *,
    num_samples: int,
    batch_size: int | None,
    on_batch: Callable[[int], None],
    on_scoring: Callable[[], None],
) -> Sampled:
    """Return `num_samples` scored answers per row.

    They are sampled with the trainer's settings and scored as at the run's `end`. The same seed and batch size give the
    same answers. `on_batch` is called with the number of new completions, `on_scoring` when scoring begins. Raise
    ModelError for a model that cannot be loaded, and any error that a reward raises.
    """
    transformers_logging.disable_progress_bar()
    device = "cuda" if torch.cuda.is_available() and experiment.launch.device != "cpu" else "cpu"
    generation = experiment.trainer.generation
    trust = experiment.model.trust_remote_code
    policy = PolicyModel(
        target.model, dtype=experiment.model.dtype, device=device, generation=generation, trust_remote_code=trust
    )
    settings = sampling_settings(experiment.trainer)
    repeated = [row for row in rows for _ in range(num_samples)]
    completions = policy.complete(
        [row["prompt"] for row in repeated],
        settings,
        greedy=False,
        batch_size=batch_size or BATCH,
        seed=experiment.seed,
        on_batch=on_batch,
    )
    on_scoring()
    answers = [answer_of(row, one) for row, one in zip(repeated, completions, strict=True)]
    settled = score_answers(experiment, answers, policy, end.step, end.max_steps, end.running or {})
    sampled = [
        SampledAnswer(
            answer.completion,
            {name: reward.raw for name, reward in scored.rewards.items()},
            scored.total,
            answer.is_truncated,
        )
        for answer, scored in zip(answers, settled.rows, strict=True)
    ]
    prompts = [
        SampledPrompt(row["prompt"], sampled[place * num_samples : (place + 1) * num_samples])
        for place, row in enumerate(rows)
    ]
    written = completions_of({SAMPLED: PartAnswers(num_samples, answers, settled.rows)})
    described = {**settings, "seed": experiment.seed, "batch_size": batch_size or BATCH}
    return Sampled(prompts, written, described)
