"""Lists the logged metrics by what logs them, so that names can be checked before a run has logged anything.

docs/metrics.md explains them. A reward may log names of its own (TRL's log_metric), so an unlisted name may still be
valid, unless it belongs to one of these families.
"""

from __future__ import annotations

EVERY_TRAINER = ("loss", "grad_norm", "learning_rate", "epoch", "num_tokens")

OF_REWARDS = (
    *("reward", "reward_std", "frac_reward_zero_std", "entropy", "step_time"),
    *(f"completions/{what}_length" for what in ("mean", "min", "max")),
    *(f"completions/{what}_terminated_length" for what in ("mean", "min", "max")),
    *("completions/clipped_ratio", "clip_ratio/low_mean", "clip_ratio/high_mean", "clip_ratio/region_mean"),
    *("clip_ratio/low_min", "clip_ratio/high_max", "passes/zero_advantage_share"),
)
"""Metrics of the trainers that sample (GRPO, RLOO, PPO), in addition to the metrics of each reward."""

WITH_BETA = ("kl",)
"""TRL's KL divergence, logged if `trainer.args.beta` is above 0."""

OF_A_CRITIC = (
    *(f"ppo/{what}" for what in ("values_mean", "returns_mean", "returns_std", "advantages_mean", "advantages_std")),
    *(f"ppo/{what}" for what in ("explained_variance", "rlhf_reward", "policy_loss", "value_loss", "clip_fraction")),
    *(f"ppo/{what}" for what in ("value_clip_fraction", "approx_kl_k3_old_new", "ratio_mean", "ratio_max", "entropy")),
    *("kl/k1_policy_ref", "kl/k3_policy_ref", "kl/k1_policy_ref_per_row", "kl/coef"),
    *("critic/grad_norm", "critic/learning_rate"),
)

OF_A_REWARD = (
    *("mean", "std", "effective_mean", "weighted_mean", "weight", "open_fraction", "excluded", "errors", "timeouts"),
    *("calls", "calls_saved", "seconds", "advantage_share"),
)
"""Below `rewards/NAME/`."""

OF_TRUNCATION = ("fraction", "score_before", "score_after", "bootstrap_value", "mean", "std", "effective_mean")
OF_TRUNCATION_TOO = ("weighted_mean", "weight", "advantage_share")
OF_KL = ("weighted_mean", "advantage_share")
OF_VALUE = ("advantage_share",)

FAMILIES = frozenset(name.partition("/")[0] for name in OF_A_CRITIC + OF_REWARDS if "/" in name)
"""First parts of names; all names of these families are listed here."""
