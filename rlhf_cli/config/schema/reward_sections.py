"""The sections `rewards`, `advantages`, `truncation`, `sampling`, `reward_model`. Rules across them are in rules/."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Field, model_validator

from rlhf_cli.config.schema.section import Bounds, Seconds, Section
from rlhf_cli.truncation import MODES, POLICIES, TruncationPolicy

AGGREGATES = ("sum", "normalize_then_sum")
"""The built-in values of `aggregate`; anything else names a function of the user's."""

RESERVED_REWARD_NAMES = frozenset({"truncation", "kl", "value", "total"})
"""Names that the trainer logs beside the rewards."""


class Weight(Section):
    """A weight that changes during training.

    It changes from `start` to `end`. The change takes `steps` optimizer steps or a `fraction` of training; give one of
    them. `shape` is the curve: `linear`, `cosine`, or one `step` at the end.
    """

    start: float
    end: float
    steps: int | None = Field(default=None, gt=0)
    fraction: float | None = Field(default=None, gt=0, le=1)
    shape: Literal["linear", "cosine", "step"] = "linear"
    exactly_one = ("steps", "fraction")


class Gate(Section):
    """A condition: a reward counts only if the raw score of the reward `by` passes one test.

    Give exactly one of `at_least`, `at_most`, `equals` and `between` ([low, high]). All bounds are inclusive.
    `otherwise` is what a row gets that fails: `zero`, another number, or `exclude` it from the reward.
    """

    by: str
    at_least: float | None = None
    at_most: float | None = None
    equals: float | None = None
    between: Bounds | None = None
    otherwise: Literal["zero", "exclude"] | float = "zero"
    exactly_one = ("at_least", "at_most", "equals", "between")


def gate_text(gate: Mapping[str, Any]) -> str:
    """Return the condition of a gate, given as in YAML: `correct >= 1`. Show a bound that is not a number as it is."""
    name, between = gate.get("by"), gate.get("between")
    if isinstance(between, list | tuple) and len(between) == 2:
        return f"{_number_text(between[0])} <= {name} <= {_number_text(between[1])}"
    signs = {"at_least": ">=", "at_most": "<=", "equals": "=", "between": "between"}
    given = ((sign, gate[key]) for key, sign in signs.items() if gate.get(key) is not None)
    return " and ".join(f"{name} {sign} {_number_text(bound)}" for sign, bound in given)


def _number_text(value: object) -> str:
    return f"{value:g}" if isinstance(value, int | float) else str(value)


class Reward(Section):
    """A named reward: a function, a reward model or the environment, and how its score is used.

    Give one of `fn` (module:function or ./file.py:function), `model` (a folder, hub id or run:NAME) and `environment`
    (a method of the environment's class, such as get_reward). `args` are the function's arguments. A score goes through
    these steps: raw, offset, clip, normalize, gate, weight. `offset` is subtracted; `auto` is the mean that `rlhf eval`
    measured. `clip` is [low, high]; null does not clip. `normalize` divides by the standard deviation of the `batch`,
    of the `group`, or of a `running` estimate. `gate` is a condition, or a list of them; null counts every row.
    `weight` multiplies the result in the total; 0 only logs the reward. `eager` also scores rows that a gate excludes.
    `on_error` is what a row gets if its scoring fails: `raise` ends the run, `exclude` leaves the row out of the
    reward, a number is its score. `when: eval` computes it in evaluations only, where it has no weight. `timeout_s`
    limits a call in seconds: for a batch, or for a row if the function is
    isolated; `off` has no limit, and `auto` is 900 and 60, with no limit for rewards that have limits of their own
    (reward models, servers, judges, sandboxes). `isolate` runs a function in a process that can be killed. `trial` has
    `check` and `train` call it on the first row of the data before torch is loaded. `per: turn` says that it returns
    a list per completion, one number for each message of the assistant. `spread` gives a score to the `last` token, or
    to all tokens `even`ly: of the span, or of the turn.

    These keys are for a reward model only. `batch_size` is the number of rows a pass scores. `dtype` is the type of its
    weights. `device` is its device; null is that of the training process. `max_length` is the limit in tokens; null is
    the model's own. `with_eos` ends plain texts with the end-of-sequence token; `auto` does so if the model was trained
    that way, which is known of models trained here.
    """

    fn: str | None = None
    model: str | None = None
    environment: str | None = None
    args: dict[str, object] = Field(default_factory=dict)
    weight: float | Weight = 1.0
    offset: float | Literal["auto"] = 0.0
    clip: Bounds | None = None
    normalize: Literal["none", "batch", "group", "running"] = "none"
    gate: Gate | list[Gate] | None = None
    eager: bool = False
    on_error: Literal["raise", "exclude"] | float = "raise"
    # Configurations frozen by older versions have null for `off`.
    timeout_s: Annotated[
        Seconds | Literal["auto", "off"],
        BeforeValidator(lambda value: "off" if value is None or value is False else value),
    ] = "auto"
    isolate: bool = False
    trial: bool = True
    per: Literal["turn"] | None = None
    spread: Literal["last", "even"] = "last"
    when: Literal["always", "eval"] = "always"
    batch_size: int = Field(default=16, gt=0)
    max_length: int | None = Field(default=None, gt=0)
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    device: str | None = None
    with_eos: Literal["auto"] | bool = "auto"

    @property
    def gates(self) -> list[Gate]:
        """Return all gates as a list."""
        return [] if self.gate is None else self.gate if isinstance(self.gate, list) else [self.gate]

    @model_validator(mode="before")
    @classmethod
    def _only_watches(cls, given: object) -> object:
        watches = isinstance(given, dict) and given.get("when") == "eval"
        return {"weight": 0.0, **given} if isinstance(given, dict) and watches else given

    @model_validator(mode="after")
    def _one_source(self) -> Reward:
        if [self.fn, self.model, self.environment].count(None) != 2:
            raise ValueError(
                "one of `fn` (./file.py:function), `model` (a folder or hub id) and `environment` (a method)"
            )
        if self.args and self.environment is not None:
            raise ValueError("no `args` beside `environment`: a method of an environment takes none")
        if self.offset == "auto" and self.model is None:
            raise ValueError("a number for `offset`: `auto` is the mean of a reward model, and a function has none")
        if self.per is not None and self.model is not None:
            raise ValueError("`per: turn` for a function only; a reward model scores the whole answer")
        if self.isolate and self.fn is None:
            raise ValueError("`isolate` for a function only; all others run in the training process")
        for name in ("batch_size", "max_length", "dtype", "device", "with_eos"):
            if self.model is None and getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"no `{name}` without `model`: a function does not read it")
        if self.device is not None and not re.fullmatch(r"(cpu|cuda|mps|xpu|npu|hpu|meta)(:\d+)?", self.device):
            raise ValueError("`cpu`, `cuda` or `cuda:1` for `device`, as torch names them")
        if self.when == "eval" and self.weight != 0:
            raise ValueError("`weight: 0` with `when: eval`: the reward has no part in any total")
        return self


if TYPE_CHECKING:
    PolicyName: TypeAlias = str
    Mode: TypeAlias = str
else:  # the words come from the classes
    PolicyName = Literal[tuple(POLICIES)]
    Mode = Literal[MODES]


class Advantages(Section):
    """A function of the user's that makes the advantages, in place of the trainer's formula.

    `fn` is module:function or ./file.py:function, and `args` are its arguments. It gets totals, rewards, weights,
    groups, counted, lengths and step by name, and returns one advantage per completion or per token, or a pair of the
    advantages and each reward's part of them (rlhf_cli/algorithms/user_function.py).
    """

    fn: str
    args: dict[str, object] = Field(default_factory=dict)


class Truncation(Section):
    """What a completion is worth that a limit cut off, for every trainer that generates.

    `policy` names the rule; `rlhf list truncation` describes each. `penalty` is the size of the penalty, 0 or more.
    `cache` is the number of last tokens over which the penalty grows; null is a fifth of max_completion_length. `mode`
    says whether the reward that the completion earned still counts: `subtract` and `add` keep it, `replace` does not;
    null is the policy's default. `also` lists the endings of a rollout with tools that count as cut off beside the
    length limit: `turns` (max_tool_calling_iterations), `tool_error` and `timeout` (the last call failed).
    """

    policy: PolicyName = "none"
    penalty: float = Field(default=1.0, ge=0)
    mode: Mode | None = None
    cache: int | None = Field(default=None, gt=0)
    also: list[Literal["turns", "tool_error", "timeout"]] = Field(default_factory=list)

    @property
    def rule(self) -> TruncationPolicy:
        """Return the policy with the values of this section."""
        return POLICIES[self.policy](penalty=self.penalty, mode=self.mode, cache=self.cache, also=tuple(self.also))


class KeepGroups(Section):
    """A round that is drawn again until its groups differ in a reward.

    `by` names the reward whose raw score has to differ between the completions of a prompt; `total` means the rewards'
    total. `tries` is how often a round is drawn at most.
    """

    by: str
    tries: int = Field(default=3, ge=1)


class Sampling(Section):
    """Which of the sampled completions are trained on. `keep_groups` keeps groups that differ; null keeps all."""

    keep_groups: KeepGroups | None = None


class Margin(Section):
    """The margin by which the chosen answer should win (arXiv 2307.09288, equation 2).

    It is read from a `column` of the data, or computed from the scores in the columns `chosen` and `rejected`: `scale`
    times the `transform` of their difference. `on_bad` says what to do with a pair whose margin is negative or not a
    number: `refuse` or `drop`.
    """

    column: str | None = None
    chosen: str | None = None
    rejected: str | None = None
    scale: float = Field(default=1.0, gt=0)
    transform: Literal["identity", "log1p", "rank"] = "identity"
    on_bad: Literal["refuse", "drop"] = "refuse"

    @model_validator(mode="after")
    def _one_source(self) -> Margin:
        scores = (self.chosen, self.rejected)
        if (self.column is None) == (scores == (None, None)) or (self.column is None and None in scores):
            raise ValueError("either `column`, or `chosen` and `rejected`: the columns of two scores")
        if self.column is not None and (self.scale != 1.0 or self.transform != "identity"):
            raise ValueError("`scale` and `transform` with two scores only; a `column` holds the margin itself")
        return self

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the columns of the data that the margin is computed from."""
        return tuple(name for name in (self.column, self.chosen, self.rejected) if name is not None)


class RewardModel(Section):
    """Settings for training a reward model that TRL has no argument for.

    `margin` is the margin between two answers; null has none. `center` is the weight of the squared sum of a pair's
    scores (arXiv 2312.09244, equation 2); null and 0 turn it off. `on_bad_pair` says what to do with a pair whose
    answers are equal or empty: `refuse` or `drop`. `show_samples` is the number of pairs that are scored and shown at
    every evaluation and at the end; -1 shows all.
    """

    margin: Margin | None = None
    center: float | None = Field(default=None, ge=0)
    on_bad_pair: Literal["refuse", "drop"] = "refuse"
    show_samples: int = Field(default=4, ge=-1)
