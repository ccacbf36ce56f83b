"""Build the algorithm of an experiment: the only place that knows which settings shape its advantages."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from rlhf_cli.config.rules.reward_rules import per_sequence_args
from rlhf_cli.config.schema.experiment import Experiment

if TYPE_CHECKING:  # an experiment imports its own algorithm only
    from rlhf_cli.algorithms.base import Algorithm
    from rlhf_cli.algorithms.grpo import Grpo, Scale
    from rlhf_cli.algorithms.own_advantages import OwnAdvantages
    from rlhf_cli.algorithms.ppo import Ppo
    from rlhf_cli.algorithms.process_rewards import ProcessRewards
    from rlhf_cli.algorithms.rloo import Rloo

_SCALES: dict[object, Scale] = {True: "group", False: "none", "group": "group", "batch": "batch", "none": "none"}
"""TRL also accepts a bool."""


def _ppo(experiment: Experiment) -> Ppo:
    from rlhf_cli.algorithms.ppo import Ppo

    ppo = experiment.trainer.ppo
    assert ppo is not None
    return Ppo(ppo.gamma, ppo.gae_lambda, ppo.whiten_advantages, ppo.shuffle_by == "prompt")


def _rloo(experiment: Experiment) -> Rloo:
    from rlhf_cli.algorithms.rloo import Rloo

    setting = experiment.trainer.setting
    clip = setting("reward_clip_range")
    return Rloo(
        bool(setting("normalize_advantages")),
        clip_range=(float(clip[0]), float(clip[1])) if isinstance(clip, list | tuple) else None,
        kl_coef=float(cast(float, setting("beta"))),
    )


def _grpo(experiment: Experiment) -> Grpo | ProcessRewards:
    from rlhf_cli.algorithms.grpo import Grpo
    from rlhf_cli.algorithms.process_rewards import ProcessRewards

    # normalize_then_sum: the stack z-scores within the group, then TRL divides by the batch's deviation.
    whole_batch = experiment.aggregate == "normalize_then_sum"
    scale = "batch" if whole_batch else _SCALES[experiment.trainer.setting("scale_rewards")]
    return ProcessRewards(scale) if experiment.trainer.dense else Grpo(scale)


def _own(experiment: Experiment) -> OwnAdvantages:
    from rlhf_cli.algorithms.own_advantages import OwnAdvantages
    from rlhf_cli.algorithms.user_function import AdvantageFunction

    section, row = experiment.advantages, experiment.trainer.row
    assert section is not None
    per_row = [f"the loss of {row.name}"] if row.advantages == "completion" else []
    per_row += [f"trainer.args.{name}" for name in per_sequence_args(experiment)]
    return OwnAdvantages(
        AdvantageFunction(section.fn, section.args),
        why_no_tokens=f"{per_row[0]} takes one per completion" if per_row else None,
        uses_old_logps=row.kl_in_reward,  # as RLOO, whose trainer this is
    )


_BUILDERS: dict[str, Callable[[Experiment], Algorithm]] = {"grpo": _grpo, "rloo": _rloo, "ppo": _ppo, "own": _own}
"""Name in tables/algorithms.py -> what builds it."""


def algorithm_of(experiment: Experiment) -> Algorithm:
    """Return how this experiment's trainer makes advantages."""
    return _BUILDERS[experiment.algorithm.name](experiment)
