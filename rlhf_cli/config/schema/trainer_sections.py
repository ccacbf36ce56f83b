"""Define the sections `trainer`, `kl` and `critic`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from pydantic import Field

from rlhf_cli.config.schema.section import Section
from rlhf_cli.tables.modes import KL_FORMS, GenerationSetting, KlForm, PassSetting
from rlhf_cli.tables.trl_trainers import TRAINERS, TrainerRow

if TYPE_CHECKING:
    KlWhere: TypeAlias = str
else:  # the words come from the table
    KlWhere = Literal[tuple(KL_FORMS)]


class PpoArgs(Section):
    """The arguments of PPO that TRL's GRPOConfig does not have; they stand in `trainer.args` beside its own.

    `gamma` and `gae_lambda` are those of generalised advantage estimation (arXiv 1506.02438, equation 16).
    `whiten_advantages` brings the advantages of a round to mean 0 and deviation 1.
    """

    gamma: float = Field(default=1.0, gt=0, le=1)
    gae_lambda: float = Field(default=0.95, ge=0, le=1)
    whiten_advantages: bool = True


class Critic(Section):
    """The value model that PPO learns beside the policy, with an optimizer of its own.

    `init` is `policy` (its body, with a new head), a folder or hub id of a reward model, critic or language model that
    reads the policy's tokens, of any size, or run:NAME. With `share: lora` the critic is a second adapter on the
    policy's body. `learning_rate` is that of its own optimizer. The policy waits for `warmup_steps` optimizer steps in
    which only the critic learns. `value_clip` bounds how far a value moves from that of the rollout, null for no bound.
    `loss_coef` multiplies the value loss, `max_grad_norm` bounds its gradient, and `dropout` stands before the head
    while training.
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
    """A controller that moves the coefficient until the divergence is `target` (arXiv 1909.08593, 2.2).

    `target` is in nats a completion, `horizon` counts completions.
    """

    target: float = Field(gt=0)
    horizon: int = Field(gt=0)


class Kl(Section):
    """The divergence of the policy from its reference, and how it is punished.

    It stands in the reward (classic PPO), in the loss (GRPO), or nowhere (`none`); `where` also decides its estimator.
    `coef` is where an adaptive `controller` begins, and the coefficient throughout where the controller is `fixed`.
    """

    where: KlWhere = "reward"
    coef: float = Field(default=0.05, ge=0)
    controller: KlController | Literal["fixed"] = "fixed"

    @property
    def form(self) -> KlForm:
        """Return what is known of a penalty that stands there."""
        return KL_FORMS[self.where]


class Trainer(Section):
    """The trainer that runs: a class of TRL's, and the arguments of its config class that the user sets.

    `name` is what screens and messages call it, `trl` the class in TRL. `class` (`./mine.py:MyGRPO`) is a class of the
    user's that inherits from `trl` and runs in its place; null runs `trl` itself. `args` are fields of TRL's config
    class, and with a critic those of `PpoArgs`. `dense` lets a dense reward act on its own tokens; false sums it to one
    number a row. `baseline` is what a completion's reward is held against: the others of its prompt, or a critic (PPO).
    `passes` is how rows go through the models of a trainer that generates: `auto` is the fastest way that they can go
    (`packed`: no padding, each prompt once; `trimmed`: sorted by length, less padding), `plain` is TRL's own, and so is
    its generation.
    `generation` is how completions are generated where vLLM does not: `auto` decodes rows until they end, `plain` is
    transformers' own loop, which decodes all until the longest ends.
    """

    name: str
    trl: str
    own_class: str | None = Field(default=None, alias="class")
    args: dict[str, object] = Field(default_factory=dict)
    dense: bool = False
    generation: GenerationSetting = "auto"
    baseline: Literal["group", "critic"] = "group"
    passes: PassSetting = "auto"

    @property
    def row(self) -> TrainerRow:
        """Return what is known of the trainer. Raises KeyError for one without a row, which the referee has refused."""
        return TRAINERS[self.trl]

    @property
    def ppo(self) -> PpoArgs | None:
        """Return PPO's own arguments, None without a critic."""
        if self.baseline != "critic":
            return None
        return PpoArgs.model_validate(
            {name: value for name, value in self.args.items() if name in PpoArgs.model_fields}
        )

    @property
    def disables_dropout(self) -> bool:
        """Return whether nothing is dropped in any pass: where `args` say so, and with a critic unless they say no."""
        return bool(self.args.get("disable_dropout", self.baseline == "critic"))

    @property
    def trl_args(self) -> dict[str, object]:
        """Return the part of `args` that is for TRL's config class."""
        if self.baseline != "critic":
            return self.args
        return {name: value for name, value in self.args.items() if name not in PpoArgs.model_fields}
