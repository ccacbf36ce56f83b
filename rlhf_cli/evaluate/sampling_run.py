"""Sample n completions per prompt and score them: the part of `rlhf generate` that needs torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from transformers.utils import logging as transformers_logging

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.evaluate.end_of_run import EndOfRun
from rlhf_cli.evaluate.evaluation_target import Target
from rlhf_cli.evaluate.generation import Policy, sampling_settings
from rlhf_cli.evaluate.policy_on_rows import answer_of, score_answers
from rlhf_cli.measure.policy_answers import Part, completions_of
from rlhf_cli.measure.preference_pairs import Row
from rlhf_cli.runs.evaluations import SAMPLED
from rlhf_cli.sampling.sampled_answers import SampledAnswer, SampledPrompt

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
    policy = Policy(
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
    written = completions_of({SAMPLED: Part(num_samples, answers, settled.rows)})
    described = {**settings, "seed": experiment.seed, "batch_size": batch_size or BATCH}
    return Sampled(prompts, written, described)
