"""Lists the kinds of findings that `rlhf why` and a running training check, under the names that switch them off."""

from __future__ import annotations

FINDING_KINDS: dict[str, str] = {
    "non_finite": "losses and gradients are numbers",
    "reward_errors": "rewards answer, and in time",
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
    "time": "no phase takes most of the time that a change would win back",
}
"""Kind -> what is true of a run without such a finding. Kinds are checked in this order."""
