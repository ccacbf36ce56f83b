"""Describe how a trainer computes advantages from totals, as far as stored rollouts allow. Does not import torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast

from rlhf_cli.config import trl_args
from rlhf_cli.config.schema.experiment import Experiment

Scale = Literal["group", "batch", "none"]
_SCALES: dict[object, Scale] = {True: "group", False: "none", "group": "group", "batch": "batch", "none": "none"}
"""TRL also accepts a bool."""


@dataclass(frozen=True)
class Recipe:
    """The computation of advantages. `baseline` is `group` (GRPO and its variants), `others` (RLOO) or `critic` (PPO).

    `scale` is for GRPO; `is_normalized`, `clip_range` and `kl_coef`, the coefficient of the KL in the reward, are for
    RLOO. `why_none` is the reason why the advantages cannot be computed from the rollouts, or None.
    """

    baseline: Literal["group", "others", "critic"]
    num_generations: int
    scale: Scale = "none"
    is_normalized: bool = False
    clip_range: tuple[float, float] | None = None
    kl_coef: float = 0.0
    why_none: str | None = None

    @property
    def is_over_batch(self) -> bool:
        """Return whether the advantages of a group depend on the other groups of its round."""
        return self.scale == "batch" or self.is_normalized


def recipe_of(experiment: Experiment) -> Recipe:
    """Return how this experiment's trainer computes advantages from totals."""
    trainer = experiment.trainer
    fields = trl_args.trainer(trainer.trl)

    def setting(name: str) -> object:
        return trl_args.setting(fields, trainer.trl_args, name) if name in fields.fields else None

    each = int(cast(int, setting("num_generations")))
    if trainer.baseline == "critic":
        return Recipe("critic", each, why_none="PPO's advantages are made of its critic's values, which are not stored")
    dense = "trainer.dense gives every token an advantage of its own; the table holds their rewards' sums"
    if trainer.trl == "RLOOTrainer":
        clip = setting("reward_clip_range")
        return Recipe(
            "others",
            each,
            is_normalized=bool(setting("normalize_advantages")),
            clip_range=(float(clip[0]), float(clip[1])) if isinstance(clip, list | tuple) else None,
            kl_coef=float(cast(float, setting("beta"))),
        )
    # normalize_then_sum: the stack z-scores within the group, then TRL divides by the batch's deviation.
    whole_batch = experiment.aggregate == "normalize_then_sum"
    scale = "batch" if whole_batch else _SCALES[setting("scale_rewards")]
    return Recipe("group", each, scale=scale, why_none=dense if trainer.dense else None)
