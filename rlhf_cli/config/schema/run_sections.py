"""The sections `launch`, `sweep`, `track`, `guards`, `profile`, `run`, `warn`, `stop` and `expect`."""

from __future__ import annotations

import math
import operator
import re
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, JsonValue, TypeAdapter, create_model, model_validator

from rlhf_cli.config.schema.section import OFF, Bounds, OneOrSeveral, Seconds, Section, entries_of, one_or_several
from rlhf_cli.tables.metrics import FINDING_KINDS, TrackerName, TrackingMode
from rlhf_cli.tables.strategies import STRATEGIES

if TYPE_CHECKING:
    StrategyName: TypeAlias = str
else:  # the words come from the table
    StrategyName = Literal[tuple(STRATEGIES)]


def _job_time(value: object) -> object:
    """Refuse a number: YAML reads 4:00:00 without quotes as 14400, which sbatch would take for minutes."""
    if isinstance(value, int | float):
        raise ValueError("hours:minutes:seconds, in quotes: YAML reads 4:00:00 without them as the number 14400")
    return value


def _iso_time(value: str) -> str:
    try:
        datetime.fromisoformat(value)
    except ValueError:
        raise ValueError("an ISO time such as 2026-12-01T06:00, in this machine's zone unless it names one") from None
    return value


class Slurm(Section):
    """What a run requests from Slurm, in sbatch's words; null leaves a setting to the cluster.

    `partition`, `account` and `qos` are names that the cluster defines. `gpus_per_node`, `cpus_per_task` (one task a
    node) and `mem_gb` (a node) are what a job gets. `time` is the time limit of a job as sbatch reads it (`4:00:00`,
    `2-00:00:00`); a run that needs longer saves, is requeued and continues. `setup` holds shell lines to run first on
    every node (`module load cuda`). `extra` holds sbatch options that have no key here, `true` for one without a value.
    `max_parallel` is the number of jobs of a sweep's array that run at once.
    """

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    time: Annotated[str | None, BeforeValidator(_job_time)] = None
    gpus_per_node: Annotated[int, Field(ge=0)] | None = None
    cpus_per_task: Annotated[int, Field(gt=0)] | None = None
    mem_gb: Annotated[float, Field(gt=0)] | None = None
    max_parallel: Annotated[int, Field(gt=0)] = 16
    setup: list[str] = Field(default_factory=list)
    extra: dict[str, str | int | bool] = Field(default_factory=dict)


class Vllm(Section):
    """The vLLM server that a run starts. `args` holds options of `vllm serve` that have no key elsewhere.

    `enforce_eager: true` becomes `--enforce-eager`, `false` becomes `--no-...`, and a mapping becomes JSON.
    """

    args: dict[str, JsonValue] = Field(default_factory=dict)


class Launch(Section):
    """The processes of a run and the hardware they use.

    `processes` is the number of processes on one machine; `auto` starts one for each GPU. `nodes` is the number of
    machines; torchrun or another launcher starts `rlhf train` on each, and sets both numbers. `device: auto` uses the
    GPU if there is one. `precision: auto` is bf16 on a GPU that supports it, else float32.

    `strategy` says how the model is sharded: not at all (`ddp`), weights, gradients and optimizer (`fsdp2`, `zero3`),
    gradients and optimizer (`zero2`), or the optimizer only (`zero1`). `offload` keeps in host memory what is not in
    use. `accelerate_config` is a file written by `accelerate config`; it supplies every setting of this section that is
    left unset.

    `rollout` chooses what generates: the model itself (`hf`), the model with continuous batching (`continuous`), vLLM
    inside each process (`vllm`), or a vLLM server (`vllm_server`). `rollout_gpus` is the number of GPUs of that server,
    and `vllm` holds its options.

    `slurm` submits the run to Slurm; null runs it here. `grace_s` is how many seconds a run that has to stop (SIGTERM,
    SIGUSR1, Ctrl-C) may take to finish its step and save. `must_save_by` is an ISO time by which the run has to be
    saved. `hang_timeout_s` is the number of seconds without progress after which a run is ended, with the stack of the
    process that hangs; `off` disables this.
    """

    processes: Annotated[int, Field(gt=0)] | Literal["auto"] = "auto"
    nodes: int = Field(default=1, gt=0)
    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["auto", "float32", "bf16", "fp16"] = "auto"
    strategy: StrategyName = "ddp"
    offload: bool = False
    accelerate_config: str | None = None
    rollout: Literal["hf", "continuous", "vllm", "vllm_server"] = "hf"
    rollout_gpus: int = Field(default=0, ge=0)
    vllm: Vllm = Field(default_factory=Vllm)
    slurm: Slurm | None = None
    grace_s: float = Field(default=120, gt=0)
    must_save_by: Annotated[str, AfterValidator(_iso_time)] | None = None
    hang_timeout_s: Annotated[Seconds | Literal["off"], OFF] = 1800.0


class Sweep(Section):
    """A search over settings, which `rlhf train -m` runs instead of a grid.

    `objective` names the metrics of metrics.jsonl to maximise; a `-` in front minimises, and several objectives give a
    Pareto front. `space` maps a key, in which `rewards.*.weight` means the weight of every reward, to its values:
    `interval(0, 1)`, `tag(log, interval(1e-6, 1e-4))`, `range(1, 9)` or `choice(a, b)`; the same expressions typed on
    the command line are searched as well. `sampler` proposes settings: `tpe` (Optuna's default), `random`, or `nsga2`
    for Pareto fronts. `trials` is the number of runs. `prune` stops trials that do worse than others at the same step:
    `median`, or `halving`, which keeps a third of them at every rung; `off` lets all run to their end.
    """

    objective: Annotated[
        list[str], BeforeValidator(lambda value: [value] if isinstance(value, str) else value), Field(min_length=1)
    ]
    space: dict[str, str] = Field(default_factory=dict)
    sampler: Literal["tpe", "random", "nsga2"] = "tpe"
    trials: int = Field(default=40, gt=0)
    prune: Annotated[Literal["off", "median", "halving"], OFF] = "off"


class Track(Section):
    """A copy of the metrics in a tracker. The run folder's metrics.jsonl is always written.

    `tracker` is `wandb`, `tensorboard`, `trackio` or `mlflow`. `mode` is `none` for no tracker; for wandb, `online`
    sends at once and `offline` records here, for `rlhf sync` to send; for the others both record. `project` and `tags`
    are shown by the tracker. `notes` is free text. `entity` is wandb's account or team; null is the login's default.
    `completions_every` N sends wandb a table of completions at most every N steps; the run folder has them all.
    """

    tracker: TrackerName = "wandb"
    mode: TrackingMode = "offline"
    project: str = "rlhf"
    entity: str | None = None
    tags: list[str] = Field(default_factory=list)
    notes: str | None = None
    completions_every: int = Field(default=10, gt=0)


class Guards(Section):
    """Guards end a run that cannot succeed.

    `no_signal` is the number of rounds in a row with all advantages 0 (because all rewards are equal, for example)
    after which a run ends; `off` never ends it. `max_error_share` ends it if a reward fails on more than this share of
    the last `error_window` rows it scored, if its `on_error` tolerates failures; 1 never does.
    """

    no_signal: Annotated[Annotated[int, Field(gt=0)] | Literal["off"], OFF] = 5
    max_error_share: float = Field(default=0.2, ge=0, le=1)
    error_window: int = Field(default=100, gt=0)


class KeepCompletions(Section):
    """Which tables of completions stay in the run folder; one is written at every log event.

    `last` is the number of newest tables to keep, `all` for every one. `every` also keeps the table of each Nth step;
    null keeps no others.
    """

    last: Annotated[int, Field(gt=0)] | Literal["all"] = 200
    every: int | None = Field(default=None, gt=0)


class Run(Section):
    """The run folder: `root`/EXPERIMENT/`name`; a null name is replaced by the time of the start.

    `resume: auto` continues an unfinished run of that name, `never` refuses. `resume_weights_only` continues from the
    weights alone if a checkpoint lacks its optimizer, schedule or random state; this gives a different run, so it is
    refused by default. `keep_completions` says which tables of completions stay.
    """

    root: str = "runs"
    name: str | None = Field(default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")
    resume: Literal["never", "auto"] = "never"
    resume_weights_only: bool = False
    keep_completions: KeepCompletions = KeepCompletions()


_WORDS = {"on": True, "off": False}
ON_OFF = BeforeValidator(lambda value: dict.fromkeys(FINDING_KINDS, value) if isinstance(value, bool | str) else value)
"""Accepts one word that sets all switches of `warn`."""
Switch = Annotated[bool, BeforeValidator(lambda value: _WORDS.get(value, value) if isinstance(value, str) else value)]
"""true or false; YAML turns a bare `on` or `off` into these, the command line leaves the words."""


if TYPE_CHECKING:
    Warn: TypeAlias = Section
else:  # the kinds come from the table
    Warn = create_model("Warn", __base__=Section, **dict.fromkeys(FINDING_KINDS, (Switch, True)))
    Warn.__doc__ = """Warnings during training, each shown once: a switch for each kind of finding of `rlhf why`.

    `on` shows it, `off` does not; `warn: off` turns all of them off. `guards` and `stop` end a run, warnings do not.
    """


_OPERATORS = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}
_WHEN = re.compile(r"^\s*(?P<metric>[^\s<>=]+)\s*(?P<sign>>=|<=|>|<)\s*(?P<number>[^\s<>=]+)\s*$")


def parsed(when: str) -> tuple[str, str, float]:
    """Return (metric, operator, bound) of a rule's text. Raise ValueError if it is malformed."""
    match = _WHEN.match(when)
    if match is None:
        raise ValueError("METRIC, then one of > >= < <=, then a number, such as kl/k1_policy_ref > 0.5")
    try:
        bound = float(match["number"])
    except ValueError:
        raise ValueError(f"a number after {match['sign']}") from None
    if not math.isfinite(bound):
        raise ValueError(f"a finite number after {match['sign']}")
    return match["metric"], match["sign"], bound


class StopRule(Section):
    """A rule that ends a run.

    `when` is METRIC > NUMBER (or >=, <, <=). METRIC is a name in metrics.jsonl, or the name of a reward, which means
    its mean raw score; `total` is the sum of all rewards, and `step` the number of the step. `for` is the number of log
    events in a row in which it has to hold; log events without the metric are skipped.
    """

    when: Annotated[str, AfterValidator(lambda when: parsed(when) and when)]
    log_events: int = Field(default=1, gt=0, alias="for")

    @property
    def metric(self) -> str:
        """Return the name that is written in `when`."""
        return parsed(self.when)[0]

    def holds(self, value: float) -> bool:
        """Return whether a value of the metric meets the rule; NaN never does."""
        _, sign, bound = parsed(self.when)
        return bool(_OPERATORS[sign](value, bound))


StopRules: TypeAlias = Annotated[
    OneOrSeveral[StopRule], one_or_several(("when", "for"), "{when: METRIC > NUMBER, for: LOG EVENTS}")
]

END, BEST, FIRST = "end", "best", "first"
_LAST = re.compile(r"^last-([1-9]\d*)$")
_BOUNDS = ("at_least", "at_most", "between")


def _place(at: object) -> object:
    is_step = isinstance(at, int) and not isinstance(at, bool) and at > 0
    is_word = isinstance(at, str) and (at in (END, BEST, FIRST) or _LAST.match(at) is not None)
    if not (is_step or is_word):
        raise ValueError("end, best, first, last-K (K log events) or the number of a step")
    return at


class Expectation(Section):
    """A result that a run has to reach: a metric, where to read it, and a bound.

    `metric` is a name in metrics.jsonl, or the name of a reward, which means its mean raw score; `total` means the sum
    of all rewards. `at` says where to read it: `end` is the mean of the last tenth of the log events, `last-K` that of
    the last K, `first` that of the first tenth, `best` the best mean of any tenth in a row, and a number is a step,
    read as `end` would have been at that step. For an evaluation's metric `end` is the last evaluation. Give exactly
    one bound: `at_least`, `at_most` or `between`, all inclusive.
    """

    metric: Annotated[str, Field(min_length=1)]
    at: Annotated[Literal["end", "best", "first"] | str | int, BeforeValidator(_place)] = "end"
    at_least: float | None = None
    at_most: float | None = None
    between: Bounds | None = None

    @model_validator(mode="after")
    def _one_bound(self) -> Expectation:
        given = [name for name in _BOUNDS if getattr(self, name) is not None]
        if given == ["at_least", "at_most"]:
            raise ValueError(f"one bound, not two: between: [{self.at_least:g}, {self.at_most:g}]")
        if len(given) != 1:
            raise ValueError("exactly one bound to compare with: at_least, at_most, or between")
        if self.at == BEST and self.between:
            raise ValueError("at_least or at_most with `at: best`: the bound says whether more or less is better")
        return self

    @property
    def low(self) -> float:
        """Return the smallest value that meets it, minus infinity without a lower bound."""
        return self.between[0] if self.between else -math.inf if self.at_least is None else self.at_least

    @property
    def high(self) -> float:
        """Return the largest value that meets it, infinity without an upper bound."""
        return self.between[1] if self.between else math.inf if self.at_most is None else self.at_most

    @property
    def last_events(self) -> int | None:
        """Return the K of `last-K`, None for a tenth of the log events."""
        match = _LAST.match(self.at) if isinstance(self.at, str) else None
        return int(match[1]) if match else None

    @property
    def bound(self) -> str:
        """Return the bound in words: `at least 0.75`."""
        if self.between:
            return f"between {self.between[0]:g} and {self.between[1]:g}"
        return f"at least {self.at_least:g}" if self.at_least is not None else f"at most {self.at_most:g}"

    @property
    def place(self) -> str:
        """Return in words where it is read: `at the end`, `at step 100`, `over its last 24 log events`."""
        if isinstance(self.at, int):
            return f"at step {self.at}"
        last = f"over its last {self.at.rpartition('-')[2]} log events"
        return {END: "at the end", BEST: "at its best", FIRST: "at the start"}.get(self.at, last)


Expectations: TypeAlias = Annotated[
    OneOrSeveral[Expectation], one_or_several(("metric", "at", *_BOUNDS), "{metric: NAME, at: end, at_least: NUMBER}")
]


def read_expectations(frozen: object) -> dict[str, Expectation]:
    """Return the expectations in a frozen configuration. Raise ValueError if one is invalid."""
    found: Expectations = TypeAdapter(Expectations).validate_python(frozen)
    return entries_of(found)
