"""List logged metrics, their trackers, kinds of findings and phases of a step; docs/reference/metrics.md has more.

A reward may log names of its own (TRL's log_metric), so an unlisted name may still be valid, unless it belongs to one
of the families listed here. The time of a phase excludes phases nested in it, so all shares add up to 1.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

TrackerName = Literal["wandb", "tensorboard", "trackio", "mlflow"]
TrackingMode = Literal["online", "offline", "none"]


def _pattern(*names: str) -> re.Pattern[str]:
    return re.compile("|".join(re.escape(name).replace(r"\*", "[^/]+") for name in names))


_CLOCK = _pattern(
    *("time_s", "time/elapsed_s", "time/share/*", "time/share/reward/*", "step_time", "eval_step_time"),
    *("passes/slots", "passes/tokens", "passes/slots_per_token"),  # counted since this process last logged
    *("rewards/*/seconds", "eval_rewards/*/seconds", "eval_*_rewards/*/seconds"),
    *("train_runtime", "eval_runtime", "eval_*_runtime", "eval_*_step_time", "eval_*_per_second"),
    *(f"{when}_{what}_per_second" for when in ("train", "eval") for what in ("samples", "steps", "tokens")),
)
"""Metrics that depend on the process or the machine: times and speeds, which alone a comparison of a run with itself
ignores. Counts that depend on time (`timeouts`) are not among them. `*` is any text without a slash.
"""


def is_of_the_clock(metric: str) -> bool:
    """Return whether a metric, given by its full name, is a time or a speed."""
    return _CLOCK.fullmatch(metric) is not None


_DIRECTIONS = {
    0: _pattern("greedy/tokens", "sampled/tokens"),
    -1: _pattern(
        *("loss", "log_loss", "ece", "perplexity", "grad_norm", "critic/grad_norm", "kl", "kl/*"),
        *("frac_reward_zero_std", "completions/clipped_ratio", "rewards/truncation/fraction"),
        *(f"rewards/*/{what}" for what in ("errors", "timeouts", "excluded", "seconds")),
        *("ppo/policy_loss", "ppo/value_loss", "ppo/approx_kl_k3_old_new", "greedy/truncated", "sampled/truncated"),
    ),
    1: _pattern(
        *("reward", "rewards/*", "rewards/*/*", "mean_reward", "accuracy", "margin", "mean_token_accuracy"),
        *("ppo/explained_variance", "pass@*/*", "maj@*/*", "greedy/*", "sampled/*"),
        *("greedy/rewards/*", "sampled/rewards/*"),
    ),
}
"""Map 1 (more is better), -1 (less is) or 0 (neither) -> names without `eval_`; the first match counts."""


def sign_of(metric: str) -> int:
    """Return 1 if more of a metric is better, -1 if less is, 0 if neither or unknown."""
    name = metric.removeprefix("eval_")
    signs = [sign for sign, pattern in _DIRECTIONS.items() if pattern.fullmatch(name)]
    if not signs and name != metric and "_" in name:  # easy_loss, hard_set_greedy/total: of an evaluation set
        return sign_of(f"eval_{name.partition('_')[2]}")
    return signs[0] if signs else 0


LEARNING_METRICS = ("loss", "accuracy", "margin", "rewards/accuracies", "rewards/margins", "mean_token_accuracy")
"""Metrics that show whether a trainer without rewards learns, in table order."""

EVERY_TRAINER = ("loss", "grad_norm", "learning_rate", "epoch", "num_tokens")
AT_THE_END = ("train_loss", "total_flos")

OF_REWARDS = (
    *("reward", "reward_std", "frac_reward_zero_std", "entropy", "step_time"),
    *(f"completions/{what}_length" for what in ("mean", "min", "max")),
    *(f"completions/{what}_terminated_length" for what in ("mean", "min", "max")),
    *("completions/clipped_ratio", "clip_ratio/low_mean", "clip_ratio/high_mean", "clip_ratio/region_mean"),
    *("clip_ratio/low_min", "clip_ratio/high_max", "passes/zero_advantage_share"),
)
"""Metrics of the trainers that sample (GRPO, RLOO, PPO), in addition to the metrics of each reward."""

WITH_BETA = ("kl",)  # TRL's KL divergence, logged if `trainer.args.beta` is above 0

STEP, TOTAL, REPRODUCED = "step", "total", "compared_steps"
"""The step, which a rule may use like a metric; the short name of TRL's `reward`; the stop rule of `rlhf reproduce`."""
_ALWAYS = (*EVERY_TRAINER, *OF_REWARDS, *WITH_BETA)  # names that mean a metric even if a reward has the same name


def logged_name(name: str, rewards: Iterable[str]) -> str:
    """Return the name in metrics.jsonl for a short name: a reward's raw mean, or TRL's `reward` for `total`."""
    if name in rewards and name not in _ALWAYS:
        return f"rewards/{name}/mean"
    return "reward" if name == TOTAL else name


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

DRAWS, UNUSED_TOKENS = "sampling/draws", "sampling/unused_token_share"
OF_SAMPLING = (DRAWS, "sampling/differing_share", "sampling/filled_share", "sampling/tokens", UNUSED_TOKENS)
"""What `sampling.keep_groups` costs."""

FAMILIES = frozenset(name.partition("/")[0] for name in OF_A_CRITIC + OF_REWARDS if "/" in name)
"""First parts of names; all names of these families are listed here."""

FINDING_KINDS: dict[str, str] = {
    "non_finite": "losses and gradients are numbers",
    "reward_errors": "rewards and tools answer, and in time",
    "dead_reward": "rewards tell rows apart",
    "gate": "gates are sometimes open and sometimes closed",
    "no_deviation": "completions of one prompt differ in their total",
    "overoptimised": "what is only watched does not fall while the total rises",
    "learning": "the total rises (the loss falls) by more than noise",
    "kl": "the policy stays near where it began",
    "truncation": "completions end by themselves",
    "length": "the length of completions changes only where a reward does",
    "entropy": "the policy does not stop exploring before it has learned",
    "redundant": "rewards say different things",
    "one_reward": "no reward drowns the others",
    "clipping": "updates are neither clipped away nor too small to be",
    "explained_variance": "the critic foresees more than a constant would",
    "value_loss": "the critic's loss does not grow",
    "time": "no phase takes time that a change would save",
}
"""Kind -> what is true of a run without such a finding. Kinds are checked in this order."""

SHARE, OF_REWARD = "time/share/", "time/share/reward/"  # prefixes of a phase's and a reward's share of the time
ELAPSED = "time/elapsed_s"  # the seconds that the shares of a log event refer to
SLOTS, TOKENS, SLOTS_PER_TOKEN = "passes/slots", "passes/tokens", "passes/slots_per_token"

WAITING, REST, EVALUATION = "waiting", "rest", "evaluation"

PHASES: dict[str, str] = {
    "data": "data",
    "generation": "generation",
    "rollout": "rest of a rollout",
    "scoring": "around rewards",
    "old_logps": "old log-probabilities",
    "reference_logps": "reference log-probabilities",
    "values": "values",
    "forward": "forward",
    "backward": "backward",
    "critic": "critic",
    "checks": "checks of numbers",
    "optimizer": "optimizer",
    "logging": "logging",
    "saving": "saving",
    EVALUATION: "evaluation",
    WAITING: "waiting for other ranks",
    REST: "the rest",
}
"""Phase of a step, the end of its metric's name -> its label in a table (docs/how-to/memory.md)."""
OF_ROLLOUTS, OF_THE_CRITIC = ("generation", "rollout", "scoring", "old_logps"), ("values", "critic")
"""Phases that only a trainer that generates has, or one with a critic; only several ranks wait for one another."""
