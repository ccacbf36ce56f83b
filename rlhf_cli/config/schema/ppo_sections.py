"""The sections that PPO needs beside a trainer: its own arguments, the critic, the KL penalty."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from pydantic import Field

from rlhf_cli.config.schema.section import Section
from rlhf_cli.tables.kl_forms import KL_FORMS, KlForm

if TYPE_CHECKING:
    KlWhere: TypeAlias = str
else:  # the words come from the table
    KlWhere = Literal[tuple(KL_FORMS)]


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

    `coef` is where an adaptive `controller` begins. The estimator is the one that is right `where` the penalty stands.
    """

    where: KlWhere = "reward"
    coef: float = Field(default=0.05, ge=0)
    controller: KlController | Literal["fixed"] = "fixed"

    @property
    def form(self) -> KlForm:
        """What is known of a penalty that stands there."""
        return KL_FORMS[self.where]
