"""The sections `trainer`, `kl` and `critic`, and of what a model may call: `tools`, `environment` and `rollout`."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from rlhf_cli.config import trl_args
from rlhf_cli.config.schema.section import OFF, OneOrNamed, Seconds, Section, one_or_several
from rlhf_cli.tables.passes import GenerationSetting, PassSetting
from rlhf_cli.tables.trl_trainers import TEXT, TRAINERS, TrainerRow


class PpoArgs(Section):
    """Arguments of PPO that TRL's GRPOConfig lacks; they go into `trainer.args`, beside TRL's own.

    `gamma` and `gae_lambda` are those of generalised advantage estimation (arXiv 1506.02438, equation 16).
    `whiten_advantages` scales the advantages of a round to mean 0 and standard deviation 1. `shuffle_by` is what goes
    into random minibatches of a round: whole prompts with all their answers, or single rows, as in TRL.
    """

    gamma: float = Field(default=1.0, gt=0, le=1)
    gae_lambda: float = Field(default=0.95, ge=0, le=1)
    whiten_advantages: bool = True
    shuffle_by: Literal["prompt", "row"] = "prompt"


class Critic(Section):
    """PPO's value model, trained beside the policy with its own optimizer.

    `init` is `policy` (the policy's body with a new head), a folder or hub id of a reward model, critic or language
    model with the policy's tokenizer, of any size, or run:NAME. `share: lora` makes the critic a second adapter on the
    policy's body. `learning_rate` is that of its own optimizer. `warmup_steps` is the number of optimizer steps in
    which only the critic learns. `value_clip` limits how far a value may move from that of the rollout; null does not
    limit it. `loss_coef` multiplies the value loss, `max_grad_norm` clips its gradient, and `dropout` is the rate
    before the head during training.
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
    """Adapts the coefficient to keep the KL divergence near `target` (arXiv 1909.08593, section 2.2).

    `target` is in nats per completion. `horizon` is a number of completions.
    """

    target: float = Field(gt=0)
    horizon: int = Field(gt=0)


class Kl(Section):
    """The penalty on the KL divergence of the policy from its reference.

    `where` puts it into the `reward` (classic PPO; its estimator k1 is exact for the gradient of the KL), the `loss`
    (GRPO; k3, as in TRL) or nowhere (`none`). `coef` is the coefficient; with a `controller` it is the initial value,
    `fixed` keeps it.
    """

    where: Literal["reward", "loss", "none"] = "reward"
    coef: float = Field(default=0.05, ge=0)
    controller: KlController | Literal["fixed"] = "fixed"


class Trainer(Section):
    """The trainer: one of TRL's classes, and the arguments of its config class that the user sets.

    `name` is shown in messages and on screen. `trl` is TRL's class. `class` (`./mine.py:MyGRPO`) is a subclass of
    it that runs instead; null runs `trl` itself. `callbacks` are classes (`./mine.py:MyCallback`) of transformers'
    TrainerCallback that are called during training. `args` are fields of TRL's config class, and with a critic also
    those of `PpoArgs`. `dense` gives a dense reward to its own tokens; false sums it to one number per row.
    `baseline` is what a completion's reward is compared with: the others of its prompt (`group`), or a `critic`
    (PPO). `passes` says how rows go through the models of a trainer that generates: `packed` (no padding, each
    prompt once), `trimmed` (sorted by length, less padding), `plain` (as in TRL), or `auto`, the fastest that
    works. `generation` says how completions are generated without vLLM: `auto` removes finished rows from the
    batch, `plain` is transformers' own loop, which decodes all rows until the longest ends.
    """

    name: str
    trl: str
    own_class: str | None = Field(default=None, alias="class")
    callbacks: list[str] = Field(default_factory=list)
    args: dict[str, object] = Field(default_factory=dict)
    dense: bool = False
    generation: GenerationSetting = "auto"
    baseline: Literal["group", "critic"] = "group"
    passes: PassSetting = "auto"

    @property
    def row(self) -> TrainerRow:
        """Return the trainer's row in the table. Validation has refused a trainer without one."""
        return TRAINERS[self.trl]

    def setting(self, name: str) -> object:
        """Return the value of an argument of TRL's: as configured, else TRL's default, else None."""
        field = trl_args.fields_of(self.trl).get(name)
        return self.args.get(name, field.default if field is not None else None)

    def whole(self, name: str) -> int | None:
        """Return an argument of TRL's that is an integer, None for anything else."""
        value = self.setting(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    @property
    def text_field(self) -> str:
        """Return the column from which SFTTrainer reads plain text."""
        return str(self.setting("dataset_text_field") or TEXT)

    @property
    def has_critic(self) -> bool:
        """Return whether a critic gives the baseline (PPO)."""
        return self.baseline == "critic"

    @property
    def ppo(self) -> PpoArgs | None:
        """Return PPO's own arguments, None without a critic."""
        own = {name: value for name, value in self.args.items() if name in PpoArgs.model_fields}
        return PpoArgs.model_validate(own) if self.has_critic else None

    @property
    def evaluates(self) -> bool:
        """Return whether it evaluates during training, or before the first step."""
        return self.setting("eval_strategy") not in (None, "no", False) or self.setting("eval_on_start") is True

    @property
    def disables_dropout(self) -> bool:
        """Return whether dropout is off in all passes: if `args` say so, and with a critic unless they say no."""
        return bool(self.args.get("disable_dropout", self.has_critic))

    @property
    def trl_args(self) -> dict[str, object]:
        """Return the part of `args` that is for TRL's config class."""
        if not self.has_critic:
            return self.args
        return {name: value for name, value in self.args.items() if name not in PpoArgs.model_fields}


class CallLimits(Section):
    """The limits of a call that the model makes; the model reads the result, or the error, as text.

    `timeout_s` is the time of one call in seconds, `off` for no limit. `max_characters` is the length at which its
    result is cut. `on_error` is what happens if a call fails: `tell` the model, or `raise` and end the run.
    """

    timeout_s: Annotated[Seconds | Literal["off"], OFF] = 10.0
    max_characters: int = Field(default=2000, gt=10)
    on_error: Literal["tell", "raise"] = "tell"

    @property
    def seconds(self) -> float | None:
        """Return the time of one call, None for no limit."""
        return None if self.timeout_s == "off" else self.timeout_s


class Tool(CallLimits):
    """A function that the model may call in a conversation.

    `fn` is module:function or ./file.py:function. Its annotations and docstring tell the model about it.
    """

    fn: str


class Environment(CallLimits):
    """A class with a state for every rollout. Its `reset(**row)` begins one, and its public methods are tools.

    `class` is module:Class or ./file.py:Class, and `args` are the arguments of its constructor. A reward reads the
    state at the end: `rewards.NAME.environment` names one of its methods.
    """

    own_class: str = Field(alias="class")
    args: dict[str, object] = Field(default_factory=dict)


class Rollout(Section):
    """A function of the user's that generates, in place of the trainer.

    `fn` takes (prompts, trainer) and returns a dict with prompt_ids, completion_ids and logprobs (or None) by row. Its
    env_mask may be 0 for tokens that the model did not write. `columns` are the further lists that it returns, one
    entry a row; rewards read them as arguments.
    """

    fn: str
    columns: list[str] = Field(default_factory=list)


_KEYS = ("class", *(name for name in Environment.model_fields if name != "own_class"))
Environments: TypeAlias = Annotated[
    OneOrNamed[Environment], one_or_several(_KEYS, "{class: ./env.py:Maze, args: {...}}", has_list=False)
]
"""One class for all rows, or several by the name in the column `environment`."""
ENVIRONMENT_COLUMN = "environment"


def environment_key(name: str | None) -> str:
    """Return the key of an environment's section."""
    return "environment" if name is None else f"environment.{name}"
