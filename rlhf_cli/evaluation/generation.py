"""Generate a policy's completions for prompts, greedily or sampled with the trainer's settings, and evaluate them.

A run with tools, an environment or a rollout function passes `Interact`, which generates as in its training.
Rewards are evaluated as in `rlhf score`: with the run's stack and aggregate, and the weights and running deviations of
its last step. The truncation policy and KL belong to the trainer and are not part of the total.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Set
from dataclasses import replace
from itertools import islice
from pathlib import Path

import torch
import trl
from transformers.utils import logging as transformers_logging

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.trainer_sections import Trainer
from rlhf_cli.evaluation.policy_results import (
    AnsweredPrompt,
    PartAnswers,
    PolicyEvaluation,
    completions_of,
    sum_up_answers,
)
from rlhf_cli.evaluation.score_completions import EndOfRun, score
from rlhf_cli.evaluation.scored_pairs import Row
from rlhf_cli.models.policy_model import SAMPLING_ARGUMENTS, PolicyModel, Sampling
from rlhf_cli.rewards.stack.scored_rows import CompletionScores, ScoredRow
from rlhf_cli.runs.run_folder import GREEDY, SAMPLED

Interact = Callable[[Path, Experiment, list[Row], int, int, EndOfRun], tuple[dict[str, PartAnswers], str | None]]
"""Answers to every row by decoding mode, scored, from a model, an experiment, the rows, the number of samples and of
completions in a batch, and the end of the run; and why they have no total.
"""
_SETTINGS = (*SAMPLING_ARGUMENTS, "max_completion_length", "generation_kwargs", "chat_template_kwargs")


def sampling_of(
    experiment: Experiment, each: int, batch_size: int, on_batch: Callable[[int], None] | None = None
) -> Sampling:
    """Return the sampling of an experiment's trainer."""
    return Sampling(sampling_settings(experiment.trainer), batch_size, experiment.seed, each, on_batch=on_batch)


def device_of(experiment: Experiment) -> str:
    """Return `cuda` if there is a GPU and the experiment may use it, else `cpu`."""
    return "cuda" if torch.cuda.is_available() and experiment.launch.device != "cpu" else "cpu"


def sampling_settings(trainer: Trainer) -> dict[str, object]:
    """Return the trainer's generation arguments under TRL's names, with GRPO's defaults for missing ones."""
    defaults = {field.name: field.default for field in dataclasses.fields(trl.GRPOConfig)}
    return {name: trainer.args.get(name, defaults[name]) for name in _SETTINGS}


def load_policy(path: Path, experiment: Experiment) -> PolicyModel:
    """Load a model with an experiment's dtype, device, way to generate and trust."""
    transformers_logging.disable_progress_bar()
    return PolicyModel(
        path,
        dtype=experiment.model.dtype,
        device=device_of(experiment),
        generation=experiment.trainer.generation,
        trust_remote_code=experiment.model.trust_remote_code,
        chat_template=experiment.model.chat_template,
    )


def evaluate_policy(
    policy: PolicyModel,
    experiment: Experiment,
    rows: list[Row],
    sampling: Sampling,
    *,
    end: EndOfRun | None = None,
    trained_on: Set[bytes] = frozenset(),
) -> tuple[PolicyEvaluation, list[Row]]:
    """Return all measures of the policy, and one row per completion.

    Each prompt is answered once greedily and `sampling.each` times with the trainer's sampling settings, and scored as
    at the run's `end`. Intervals are over prompts, because the samples of one prompt are not independent. `trained_on`
    is passed to `sum_up_answers`.
    """
    ways = {GREEDY: replace(sampling, each=1, is_greedy=True), SAMPLED: sampling}
    answered = {name: answer_prompts(policy, rows, way) for name, way in ways.items() if way.each}
    everything = [answer for answers in answered.values() for answer in answers]
    settled = score_answers(experiment, everything, policy, end or EndOfRun())
    scored = iter(settled.rows)
    parts = {
        name: PartAnswers(ways[name].each, answers, list(islice(scored, len(answers))))
        for name, answers in answered.items()
    }
    evaluation = replace(
        sum_up_answers(parts, list(experiment.rewards), no_total=settled.no_total, trained_on=trained_on),
        settings={**sampling.settings, "samples": sampling.each, "seed": sampling.seed},
    )
    return evaluation, completions_of(parts)


def evaluate_interactively(
    interact: Interact,
    model: Path,
    experiment: Experiment,
    rows: list[Row],
    sampling: Sampling,
    *,
    end: EndOfRun,
    trained_on: Set[bytes],
) -> tuple[PolicyEvaluation, list[Row]]:
    """Return what `evaluate_policy` returns, for a run whose trainer alone can answer."""
    parts, no_total = interact(model, experiment, rows, sampling.each, sampling.batch_size, end)
    evaluation = sum_up_answers(parts, list(experiment.rewards), no_total=no_total, trained_on=trained_on)
    settings = {**sampling.settings, "samples": sampling.each, "seed": sampling.seed}
    return replace(evaluation, settings=settings), completions_of(parts)


def answer_prompts(policy: PolicyModel, rows: list[Row], sampling: Sampling) -> list[AnsweredPrompt]:
    """Return `sampling.each` answers per row, as messages if the prompt is a list of messages."""
    repeated = [row for row in rows for _ in range(sampling.each)]
    answers = []
    for row, answer in zip(repeated, policy.complete([row["prompt"] for row in repeated], sampling), strict=True):
        is_chat = isinstance(row["prompt"], list)
        completion = [{"role": "assistant", "content": answer.text}] if is_chat else answer.text
        answers.append(AnsweredPrompt(row, completion, answer.ids, answer.is_truncated))
    return answers


def score_answers(
    experiment: Experiment, answers: list[AnsweredPrompt], policy: PolicyModel, end: EndOfRun
) -> CompletionScores:
    """Score the answers as at the `end` of a run. Without rewards, no answer has a score."""
    if not experiment.rewards:
        return CompletionScores([ScoredRow(None, {}) for _ in answers])
    rows = [{name: value for name, value in answer.as_row().items() if name != "is_truncated"} for answer in answers]
    return score(experiment, rows, device=policy.device, decode=policy.decode, end=end)
