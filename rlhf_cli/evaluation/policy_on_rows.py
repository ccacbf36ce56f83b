"""Evaluate a policy on rows by its rewards, one or n answers a prompt.

Rewards are evaluated as in `rlhf score`: with the run's stack and aggregate, and the weights and running deviations of
its last step. The truncation policy and KL belong to the trainer and are not part of the total.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import replace
from itertools import islice

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.evaluation.generation import PolicyModel, sampling_settings
from rlhf_cli.evaluation.score_completions import EndOfRun, score
from rlhf_cli.measure.policy_results import (
    AnsweredPrompt,
    PartAnswers,
    PolicyEvaluation,
    completions_of,
    sum_up_answers,
)
from rlhf_cli.measure.scored_pairs import Row
from rlhf_cli.rewards.stack.scored_rows import CompletionScores, ScoredRow
from rlhf_cli.runs.run_folder import GREEDY, SAMPLED


def evaluate_policy(
    policy: PolicyModel,
    experiment: Experiment,
    rows: list[Row],
    *,
    samples: int,
    batch_size: int,
    end: EndOfRun | None = None,
    trained_on: Set[bytes] = frozenset(),
    on_batch: Callable[[int], None] = lambda done: None,
) -> tuple[PolicyEvaluation, list[Row]]:
    """Return all measures of the policy, and one row per completion.

    Each prompt is answered once greedily and `samples` times with the trainer's sampling settings, and scored as at the
    run's `end`. Intervals are over prompts, because the samples of one prompt are not independent. `trained_on`
    is passed to `sum_up_answers`; `on_batch` is called with the number of new completions.
    """
    answered = {
        name: (each, answer_prompts(policy, experiment, rows, each, batch_size, on_batch, is_greedy=name == GREEDY))
        for name, each in ((GREEDY, 1), (SAMPLED, samples))
        if each
    }
    settled = score_answers(
        experiment, [one for _, answers in answered.values() for one in answers], policy, end or EndOfRun()
    )
    scored = iter(settled.rows)
    parts = {
        name: PartAnswers(each, answers, list(islice(scored, len(answers))))
        for name, (each, answers) in answered.items()
    }
    evaluation = replace(
        sum_up_answers(parts, list(experiment.rewards), no_total=settled.no_total, trained_on=trained_on),
        settings={**sampling_settings(experiment.trainer), "samples": samples, "seed": experiment.seed},
    )
    return evaluation, completions_of(parts)


def answer_prompts(
    policy: PolicyModel,
    experiment: Experiment,
    rows: list[Row],
    each: int,
    batch_size: int,
    on_batch: Callable[[int], None],
    *,
    is_greedy: bool,
) -> list[AnsweredPrompt]:
    """Return `each` answers per row, as messages if the prompt is a list of messages."""
    repeated = [row for row in rows for _ in range(each)]
    completions = policy.complete(
        [row["prompt"] for row in repeated],
        sampling_settings(experiment.trainer),
        greedy=is_greedy,
        batch_size=batch_size,
        seed=experiment.seed,
        on_batch=on_batch,
    )
    answers = []
    for row, one in zip(repeated, completions, strict=True):
        is_chat = isinstance(row["prompt"], list)
        completion = [{"role": "assistant", "content": one.text}] if is_chat else one.text
        answers.append(AnsweredPrompt(row, completion, one.ids, one.is_truncated))
    return answers


def score_answers(
    experiment: Experiment, answers: list[AnsweredPrompt], policy: PolicyModel, end: EndOfRun
) -> CompletionScores:
    """Score the answers as at the `end` of a run; without rewards nothing has a score."""
    if not experiment.rewards:
        return CompletionScores([ScoredRow(None, {}) for _ in answers])
    rows = [{name: value for name, value in one.as_row().items() if name != "is_truncated"} for one in answers]
    return score(experiment, rows, device=policy.device, decode=policy.decode, end=end)
