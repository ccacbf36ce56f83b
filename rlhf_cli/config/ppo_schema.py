"""The sections PPO needs beside a trainer: the critic, the KL penalty, and what an answer that was cut off means.

Rules that need more than one section are in ppo.py and truncation.py.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from rlhf_cli.config.section import Section


class PpoArgs(Section):
    """The arguments of PPO that TRL's GRPOConfig has not; they stand in `trainer.args` beside its own.

    `gamma` and `gae_lambda` are those of generalised advantage estimation (arXiv 1506.02438, equation 16).
    """

    gamma: float = Field(default=1.0, gt=0, le=1)
    gae_lambda: float = Field(default=0.95, ge=0, le=1)
    whiten_advantages: bool = True


class Critic(Section):
    """The value model of PPO: where its weights come from, and its own optimizer.

    `init` is `policy` (its body, with a new head), a folder or hub id of a reward model or critic, or run:NAME.
    """

    init: str = "policy"
    share: Literal["none", "lora"] = "none"
    learning_rate: float = Field(default=1e-5, gt=0)
    warmup_steps: int = Field(default=0, ge=0)
    value_clip: float | None = Field(default=0.2, gt=0)
    loss_coef: float = Field(default=0.5, gt=0)
    max_grad_norm: float = Field(default=1.0, gt=0)
    dropout: float = Field(default=0.0, ge=0, lt=1)


class KlController(Section):
    """A coefficient that follows the divergence towards `target`, over `horizon` rows (arXiv 1909.08593, 2.2)."""

    target: float = Field(gt=0)
    horizon: int = Field(gt=0)


class Kl(Section):
    """The divergence of the policy from its reference: in the reward (classic PPO), in the loss (GRPO), or not at all.

    `coef` is where an adaptive `controller` begins. `estimator` null is the one that fits `where`.
    """

    where: Literal["reward", "loss", "none"] = "reward"
    coef: float = Field(default=0.05, ge=0)
    estimator: Literal["k1", "k3"] | None = None
    controller: KlController | Literal["fixed"] = "fixed"

    @property
    def used_estimator(self) -> str | None:
        """The estimator given, or the one that fits `where`; None where there is no KL."""
        return self.estimator or ESTIMATORS.get(self.where)


ESTIMATORS = {"reward": "k1", "loss": "k3"}
"""Where the KL is -> the estimator it can have there.

In the reward k1 is exact for the gradient of the KL; k3 is what TRL's loss holds.
"""


class Truncation(Section):
    """What a completion that the length limit cut is worth; one policy, whichever trainer.

    `penalty` is read by `eos_penalty` and `soft_overlong`, `cache` (tokens; null: a fifth of max_completion_length) by
    `soft_overlong`. `mode` is `subtract` or `replace` for `eos_penalty`, `add` or `replace` for `bootstrap`: whether
    what the cut completion had earned still counts beside it.
    """

    policy: Literal["none", "eos_penalty", "bootstrap", "exclude", "soft_overlong"] = "none"
    penalty: float = 1.0
    mode: Literal["add", "subtract", "replace"] | None = None
    cache: int | None = Field(default=None, gt=0)

    @field_validator("penalty")
    @classmethod
    def _is_a_size(cls, penalty: float) -> float:
        if penalty < 0:
            raise ValueError(f"a size: it is subtracted, so give it positive: truncation.penalty={-penalty:g}")
        return penalty

    @property
    def replaces(self) -> bool:
        """What the cut completion had earned does not count."""
        return self.mode == "replace"
