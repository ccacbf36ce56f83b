"""Defines the section `rewards`: named rewards with weights, gates and transforms."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from rlhf_cli.config.schema.durations import seconds_auto_or_off
from rlhf_cli.config.schema.section import Section

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
