"""Define the sections `rewards`, `truncation` and `reward_model`.

Rules that need more than one section are in reward_model_rules.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from pydantic import BeforeValidator, Field, field_validator, model_validator

from rlhf_cli.config.schema.section import Section, seconds_auto_or_off
from rlhf_cli.tables.modes import TRUNCATION_POLICIES, TruncationRow

AGGREGATES = ("sum", "normalize_then_sum")
"""These ways make one total of all components; anything else names a function of the user's."""

RESERVED_REWARD_NAMES = frozenset({"truncation", "kl", "value", "total"})
"""The trainer itself adds these components to a reward; they share the rewards' place in the logs."""


class Weight(Section):
    """A weight that moves from `start` to `end` over `steps` optimizer steps or a `fraction` of training.

    One of `steps` and `fraction` is given, the other is null. `shape` is the way there: `linear`, `cosine`, or one
    `step` at the end.
    """

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
    """A condition: a reward counts only where the raw score of the reward `by` passes one test.

    Exactly one of `at_least`, `at_most`, `equals` and `between` ([low, high]) is given, the others are null. All bounds
    are inclusive. `otherwise` is what a row gets that does not pass: 0, another number, or to be left out of the
    reward.
    """

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
    """A reward that has a name: a function or a reward model, and the rules around it.

    Either `fn` (module:function or ./file.py:function, called with `args`) or `model` (a folder, hub id or run:NAME) is
    given, the other is null. The order is raw, offset, clip, normalize, gate, weight. `offset` is subtracted; `auto` is
    the mean that `rlhf eval` measured. `weight` multiplies what is left when it is added to the total; 0 only watches.
    `clip` is [low, high], null for no limit. `normalize` divides by the deviation
    of the batch, of the group, or of a running estimate. `gate` is null where every row counts. `eager` scores also the
    rows that a gate turns away. `on_error` is what a row gets whose scoring failed, or `raise` to end the run.
    `timeout_s` is in seconds, for a call of a function on a batch, or on a row where it is isolated; off: no limit;
    auto: 900 and 60, and no limit for what keeps its own time (reward models, servers, judges, sandboxes). `spread`
    says which tokens get a dense reward's score: the last, or all evenly.

    `batch_size`, `dtype`, `device` (null: that of the training process), `max_length` (tokens; null: the model's own
    limit), `with_eos` (end plain texts with the end-of-sequence token; `auto`: where the model was trained so, which a
    model that was trained here knows) and `offset: auto` are for a `model`; `isolate` runs a function in a process
    that can be killed.
    """

    fn: str | None = None
    model: str | None = None
    args: dict[str, object] = Field(default_factory=dict)
    weight: float | Weight = 1.0
    offset: float | Literal["auto"] = 0.0
    clip: tuple[float, float] | None = Field(default=None, strict=False)
    normalize: Literal["none", "batch", "group", "running"] = "none"
    gate: Gate | list[Gate] | None = None
    eager: bool = False
    on_error: Literal["raise", "exclude"] | float = "raise"
    timeout_s: Annotated[float | Literal["auto", "off"] | None, BeforeValidator(seconds_auto_or_off)] = "auto"
    isolate: bool = False
    spread: Literal["last", "even"] = "last"
    batch_size: int = Field(default=16, gt=0)
    max_length: int | None = Field(default=None, gt=0)
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    device: str | None = None
    with_eos: Literal["auto"] | bool = "auto"

    @property
    def gates(self) -> list[Gate]:
        """Return all gates in a list, empty for none."""
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


if TYPE_CHECKING:
    PolicyName: TypeAlias = str
    Mode: TypeAlias = str
else:  # the words come from the table
    PolicyName = Literal[tuple(TRUNCATION_POLICIES)]
    Mode = Literal[tuple(sorted({mode for row in TRUNCATION_POLICIES.values() for mode in row.modes}))]


class Truncation(Section):
    """The policy that says what a completion is worth that the length limit cut, whichever trainer runs.

    `policy` is none, eos_penalty, bootstrap, exclude or soft_overlong. `penalty` is a size (0 or more), read by
    `eos_penalty` and `soft_overlong`, `cache` (tokens; null: a fifth of max_completion_length) by `soft_overlong`.
    `mode` is `subtract` or `replace` for `eos_penalty`, `add` or `replace` for `bootstrap`: it decides whether what the
    cut completion had earned still counts beside it. Null is for the policy's default: `subtract`, and for `bootstrap`
    the one that the rewards want, which is `add` where all are dense and `replace` where any judges the whole answer.
    """

    policy: PolicyName = "none"
    penalty: float = 1.0
    mode: Mode | None = None
    cache: int | None = Field(default=None, gt=0)

    @field_validator("penalty")
    @classmethod
    def _is_a_size(cls, penalty: float) -> float:
        if penalty < 0:
            raise ValueError("0 or more: it is subtracted from the reward")
        return penalty

    @property
    def row(self) -> TruncationRow:
        """Return what is known of the policy."""
        return TRUNCATION_POLICIES[self.policy]

    @property
    def replaces(self) -> bool:
        """Return whether what the cut completion had earned is left out."""
        return self.mode == "replace"


class Margin(Section):
    """The distance by which the chosen answer is to be ahead (arXiv 2307.09288, equation 2).

    It comes from a `column` of the data, or is `scale` times the `transform` of how far the score in the column
    `chosen` is above that in `rejected`; what is not used is null. `on_bad` says what becomes of a pair whose margin is
    no number, or below 0.
    """

    column: str | None = None
    chosen: str | None = None
    rejected: str | None = None
    scale: float = Field(default=1.0, gt=0)
    transform: Literal["identity", "log1p", "rank"] = "identity"
    on_bad: Literal["refuse", "drop"] = "refuse"

    @model_validator(mode="after")
    def _one_origin(self) -> Margin:
        scores = (self.chosen, self.rejected)
        if (self.column is None) == (scores == (None, None)) or (self.column is None and None in scores):
            raise ValueError("either `column`, or `chosen` and `rejected`: the columns of two scores")
        if self.column is not None and (self.scale != 1.0 or self.transform != "identity"):
            raise ValueError("`scale` and `transform` are for two scores; a `column` holds the margin itself")
        return self

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the columns of the data that the margin is made of."""
        return tuple(name for name in (self.column, self.chosen, self.rejected) if name is not None)


class RewardModel(Section):
    """The settings for training a reward model that are not among TRL's arguments.

    `margin` is how far apart two answers are to be, null for no margin. `center` is the weight of the squared sum of a
    pair's scores (arXiv 2312.09244, equation 2), null or 0 for none. `on_bad_pair` says whether a pair with equal or
    empty answers ends the run or is dropped. `show_samples` pairs are scored and shown at every evaluation and at the
    end, -1 for all.
    """

    margin: Margin | None = None
    center: float | None = Field(default=None, ge=0)
    on_bad_pair: Literal["refuse", "drop"] = "refuse"
    show_samples: int = Field(default=4, ge=-1)
