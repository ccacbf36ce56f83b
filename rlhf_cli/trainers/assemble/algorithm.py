"""Build the algorithm of an experiment: the only place that knows which settings shape its advantages."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from rlhf_cli.config.rules.reward_rules import per_sequence_args
from rlhf_cli.config.schema.experiment import Experiment

if TYPE_CHECKING:
    from rlhf_cli.algorithms.base import Algorithm
    from rlhf_cli.algorithms.grpo import Scale

_SCALES: dict[object, Scale] = {True: "group", False: "none", "group": "group", "batch": "batch", "none": "none"}


def algorithm_of(experiment: Experiment) -> Algorithm:
    """Return how this experiment's trainer makes advantages; it imports its own algorithm only."""
    trainer, section, row = experiment.trainer, experiment.advantages, experiment.trainer.row
    if section is not None:
        from rlhf_cli.algorithms.own_advantages import OwnAdvantages
        from rlhf_cli.algorithms.user_function import AdvantageFunction

        per_row = [f"the loss of {row.name}"] if row.advantages == "completion" else []
        per_row += [f"trainer.args.{name}" for name in per_sequence_args(experiment)]
        return OwnAdvantages(
            AdvantageFunction(section.fn, section.args),
            why_no_tokens=f"{per_row[0]} takes one per completion" if per_row else None,
        )
    if (ppo := trainer.ppo) is not None:
        from rlhf_cli.algorithms.ppo import Ppo

        return Ppo(ppo.gamma, ppo.gae_lambda, ppo.whiten_advantages, ppo.shuffle_by == "prompt")
    if row.algorithm == "rloo":
        from rlhf_cli.algorithms.rloo import Rloo

        clip = trainer.setting("reward_clip_range")
        return Rloo(
            bool(trainer.setting("normalize_advantages")),
            clip_range=(float(clip[0]), float(clip[1])) if isinstance(clip, list | tuple) else None,
            kl_coef=float(cast(float, trainer.setting("beta"))),
        )
    # normalize_then_sum: the stack z-scores within the group, then TRL divides by the batch's deviation.
    whole_batch = experiment.aggregate == "normalize_then_sum"
    scale = "batch" if whole_batch else _SCALES[trainer.setting("scale_rewards")]
    from rlhf_cli.algorithms.grpo import Grpo, ProcessRewards

    return ProcessRewards(scale) if trainer.dense else Grpo(scale)
