"""The sections of an experiment that are ours. TRL's own arguments live in `trainer.args` (see trl_args.py).

Strict: an unknown key or a wrong type is an error. A weight is a number, a name is a string, `yes` is not a boolean.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from rlhf_cli.config.ppo_schema import Critic, Kl, KlController, PpoArgs, Truncation
from rlhf_cli.config.reward_model_schema import Margin, RewardModel
from rlhf_cli.config.section import Section

# Lent: they live next door.
__all__ = ["Critic", "Kl", "KlController", "Margin", "PpoArgs", "RewardModel", "Section", "Truncation"]


class Trainer(Section):
    """Which TRL trainer runs, and what of its config class we set.

    `baseline` is what a completion's reward is held against: the others of its prompt, or a critic (PPO).
    """

    name: str
    trl: str
    args: dict[str, Any] = Field(default_factory=dict)
    dense: bool = False
    baseline: Literal["group", "critic"] = "group"

    @property
    def ppo(self) -> PpoArgs | None:
        """PPO's own arguments, None without a critic."""
        if self.baseline != "critic":
            return None
        return PpoArgs(**{name: value for name, value in self.args.items() if name in PpoArgs.model_fields})

    @property
    def trl_args(self) -> dict[str, Any]:
        """What of `args` is for TRL's config class."""
        if self.baseline != "critic":
            return self.args
        return {name: value for name, value in self.args.items() if name not in PpoArgs.model_fields}


class WarmStart(Section):
    """The short supervised training that gives a freshly built model something to improve."""

    worlds: list[str]
    steps: int = Field(gt=0)
    batch_size: int = Field(gt=0)
    learning_rate: float = Field(gt=0)


class Build(Section):
    """A small byte-level transformer made on the spot instead of downloaded."""

    hidden_size: int = Field(gt=0)
    num_layers: int = Field(gt=0)
    num_heads: int = Field(gt=0)
    context_tokens: int = Field(gt=8)
    warm_start: WarmStart | None = None


class Lora(Section):
    """A LoRA adapter (arXiv 2106.09685) on the policy; the names are peft.LoraConfig's."""

    r: int = Field(default=16, gt=0)
    lora_alpha: int = Field(default=32, gt=0)
    lora_dropout: float = Field(default=0.0, ge=0, lt=1)
    target_modules: str | list[str] = "all-linear"


class Model(Section):
    """The model to train, or what a reward model is trained from: a `path` (local folder or hub id) or a `build`.

    `quantize` loads its frozen weights in 4 bits (QLoRA, arXiv 2305.14314) or 8, under a `lora` that is trained.
    """

    path: str | None = None
    build: Build | None = None
    revision: str | None = None
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    tokenizer: str | None = None
    trust_remote_code: bool = False
    lora: Lora | None = None
    quantize: Literal["4bit", "8bit"] | None = None

    @model_validator(mode="after")
    def _one_of_path_and_build(self) -> Model:
        if (self.path is None) == (self.build is None):
            raise ValueError("either `path` (a folder or hub id) or `build`, not both and not neither")
        return self


class Message(Section):
    """One turn of a conversational prompt template."""

    role: Literal["system", "user", "assistant"]
    content: str


class Source(Section):
    """Where rows come from: a generated `world`, or a `path` (file, folder, glob, hub id)."""

    world: str | None = None
    args: dict[str, Any] = Field(default_factory=dict)
    path: str | list[str] | None = None
    subset: str | None = None
    split: str | None = None
    revision: str | None = None
    rename: dict[str, str] = Field(default_factory=dict)
    select: int | list[int] | None = None
    weight: float = Field(default=1.0, gt=0)


class Eval(Source):
    """Held-out rows: a `fraction` of the training rows, or a source of their own."""

    fraction: float | None = Field(default=None, gt=0, lt=1)


class Data(Source):
    """Training rows: one source, or a `mix` of named ones.

    `transcripts`: `chosen` and `rejected` are whole dialogues, to be split into `prompt` and last answers.
    """

    mix: dict[str, Source] | None = None
    transcripts: bool = False
    prompt: str | list[Message] | None = None
    eval: Eval | None = None

    @model_validator(mode="after")
    def _one_origin(self) -> Data:
        if sum(origin is not None for origin in (self.world, self.path, self.mix)) != 1:
            raise ValueError("exactly one of `world`, `path` and `mix`")
        return self


class Weight(Section):
    """A weight that moves from `start` to `end` over `steps` optimizer steps or a `fraction` of training."""

    start: float
    end: float
    steps: int | None = Field(default=None, gt=0)
    fraction: float | None = Field(default=None, gt=0, le=1)
    shape: Literal["linear", "cosine", "step"] = "linear"

    @model_validator(mode="after")
    def _one_length(self) -> Weight:
        if (self.steps is None) == (self.fraction is None):
            raise ValueError("either `steps` or `fraction`")
        return self


class Gate(Section):
    """A reward counts only where the raw score of the reward `by` passes one test."""

    by: str
    at_least: float | None = None
    at_most: float | None = None
    equals: float | None = None
    between: tuple[float, float] | None = Field(default=None, strict=False)
    otherwise: Literal["zero", "exclude"] | float = "zero"

    @model_validator(mode="after")
    def _one_test(self) -> Gate:
        tests = (self.at_least, self.at_most, self.equals, self.between)
        if sum(test is not None for test in tests) != 1:
            raise ValueError("exactly one of `at_least`, `at_most`, `equals` and `between`")
        if self.between is not None and self.between[0] > self.between[1]:
            raise ValueError("`between` as [low, high]")
        return self


class Reward(Section):
    """One named reward: a function or a reward model, and the rules around it.

    The order is raw, offset, clip, normalize, gate, weight. `offset: auto` is the mean that `rlhf eval` measured.
    `batch_size`, `dtype`, `device`, `max_length`, `with_eos` (end plain texts with the end-of-sequence token, as TRL's
    RewardTrainer does) and `offset: auto` are for a `model`; `isolate` runs a function in a process that can be killed.
    """

    fn: str | None = None
    model: str | None = None
    args: dict[str, Any] = Field(default_factory=dict)
    weight: float | Weight = 1.0
    offset: float | Literal["auto"] = 0.0
    clip: tuple[float, float] | None = Field(default=None, strict=False)
    normalize: Literal["none", "batch", "group", "running"] = "none"
    gate: Gate | list[Gate] | None = None
    eager: bool = False
    on_error: Literal["raise", "exclude"] | float = "raise"
    timeout_s: float | None = Field(default=None, gt=0)
    isolate: bool = False
    spread: Literal["last", "even"] = "last"
    batch_size: int = Field(default=16, gt=0)
    max_length: int | None = Field(default=None, gt=0)
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    device: str | None = None
    with_eos: bool = False

    @property
    def gates(self) -> list[Gate]:
        """All gates, in a list."""
        return [] if self.gate is None else self.gate if isinstance(self.gate, list) else [self.gate]

    @model_validator(mode="after")
    def _one_of_fn_and_model(self) -> Reward:
        if (self.fn is None) == (self.model is None):
            raise ValueError("either `fn` (module:function or ./file.py:function) or `model` (a folder or hub id)")
        if self.clip is not None and self.clip[0] > self.clip[1]:
            raise ValueError("`clip` as [low, high]")
        if self.offset == "auto" and self.model is None:
            raise ValueError("`offset: auto` is the mean of a reward model, by `rlhf eval`; a function has none")
        if self.isolate and self.fn is None:
            raise ValueError("`isolate` is for a function; a reward model runs in the training process")
        return self


class Launch(Section):
    """On what and in how many processes."""

    processes: Annotated[int, Field(gt=0)] | Literal["auto"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["auto", "float32", "bf16", "fp16"] = "auto"


class Track(Section):
    """wandb; `metrics.jsonl` in the run folder is written whatever this says."""

    mode: Literal["online", "offline", "none"] = "offline"
    project: str = "rlhf"
    entity: str | None = None
    tags: list[str] = Field(default_factory=list)
    notes: str | None = None


class Run(Section):
    """The run folder."""

    root: str = "runs"
    name: str | None = Field(default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    resume: Literal["never", "auto"] = "never"


class Experiment(Section):
    """Everything one run needs to know."""

    seed: int = Field(ge=0, lt=2**32)
    trainer: Trainer
    model: Model
    data: Data
    rewards: dict[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")], Reward] = Field(default_factory=dict)
    primary: Gate | None = None
    aggregate: str = "sum"
    critic: Critic | None = None
    kl: Kl | None = None
    reward_model: RewardModel | None = None
    truncation: Truncation = Truncation()
    launch: Launch
    track: Track
    run: Run


AGGREGATES = ("sum", "normalize_then_sum")
"""Ways to make one total of all components; anything else names a function of the user's."""

RESERVED_REWARD_NAMES = frozenset({"truncation", "kl", "value", "total"})
"""Components the trainer itself adds to a reward; they share the rewards' place in the logs."""
