"""Describe what every verb prints with `--json`, as JSON Schema derived from the dataclasses that are printed.

`OUTPUTS` maps each verb to the type of its value. A dataclass that is printed as it is, is named; one that is printed
with more keys has a subclass here; a dict that a verb builds has a TypedDict.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import UnionType
from typing import Literal, NotRequired, TypeAlias

from pydantic import ConfigDict, JsonValue, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema
from typing_extensions import TypedDict

from rlhf_cli.analysis.audit.audit_result import AuditResult
from rlhf_cli.analysis.comparison.verdicts import PairedDifference
from rlhf_cli.analysis.diagnosis.run_diagnosis import Diagnosis
from rlhf_cli.display.page.page_content import WrittenReport
from rlhf_cli.measure.best_of_n import BestOfK
from rlhf_cli.measure.score_bench import ScoreCorrelation, TwoWeightings
from rlhf_cli.numerics.intervals import Estimate
from rlhf_cli.plan.batches import BatchPlan, StagePlan
from rlhf_cli.plan.run_plan import Evaluations, Notice, Workload
from rlhf_cli.project.doctor.machine import Condition
from rlhf_cli.project.export.exported_folder import ExportedModel
from rlhf_cli.project.reference.key_reference import MetricReference
from rlhf_cli.runs.run_status import RunResult, RunState
from rlhf_cli.tables.passes import Passes

Tree: TypeAlias = dict[str, JsonValue]
"""An object whose keys are the user's, or are described elsewhere."""


class Problem(TypedDict("Problem", {"try": str | None})):
    """A mistake. `try` is a command or an override to type (words in capitals stand for yours); else see `advice`.

    `kind` is the class of the error: ConfigError, DataError, RewardError, ModelError, RunError ...
    """

    kind: str
    what: str
    where: str | None
    got: str | None
    expected: str | None
    advice: str | None


class ProblemsOutput(TypedDict):
    """What every verb prints if it fails."""

    problems: list[Problem]


class InitOutput(TypedDict):
    """The files that were written, and the commands to type next."""

    folder: str
    files: list[str]
    trains: str
    model: str
    data: str
    rename: dict[str, str]
    next: list[str]


class DoctorOutput(TypedDict):
    can_train: bool
    conditions: list[Condition]


class OptionOutput(TypedDict):
    """An option of a group, with the first line of its file."""

    name: str
    caption: str
    file: str


class OptionPage(OptionOutput):
    """`rlhf list GROUP NAME`."""

    group: str
    text: str


class RewardPage(TypedDict):
    """`rlhf list reward NAME`. `name` and `conf_file` are null for a function of yours.

    An argument without `default` is required; `shipped` is its value in the file of conf/.
    """

    name: str | None
    fn: str | None
    caption: str
    summary: str
    text: str
    arguments: list[Tree]
    columns: list[Tree]
    example: Tree | None
    yaml: str
    override: str
    conf_file: str | None
    file: str
    line: int | None


class TrainerPage(TypedDict):
    """`rlhf list trainer NAME`.

    The `key` of an argument is null if another key, `set_by`, sets it; `here` is its value in the file `origin`.
    """

    name: str
    caption: str
    trl: str
    has_critic: bool
    conf_file: str
    arguments: list[Tree]


class KeyOutput(TypedDict):
    """A key of the configuration, required if it has no `default`; `holds` are the keys below it."""

    key: str
    type: str
    default: NotRequired[JsonValue]
    values: list[str]
    text: str
    holds: list[str]


ListOutput: TypeAlias = (
    dict[str, list[OptionOutput]] | list[KeyOutput] | list[MetricReference] | OptionPage | RewardPage | TrainerPage
)


class PlanOutput(TypedDict):
    """What a run will do.

    `round` is null for a trainer that does not generate, `stage` for one that does. Counts are null if a dataset of the
    hub decides. Sizes in `checkpoints` and `memory` are in bytes.
    """

    model: str
    data: str
    columns: list[str]
    num_rows: int | None
    rewards: dict[str, str]
    processes: int
    round: BatchPlan | None
    stage: StagePlan | None
    workload: Workload
    evaluations: Evaluations | None
    checkpoints: Tree | None
    passes: Passes | None
    memory: Tree
    notices: list[Notice]


class LaunchOutput(TypedDict):
    """What would be started: the ranks of this machine (`rank`, `gpu`, `command`), of `world_size` on all `nodes`."""

    in_this_process: bool
    nodes: int
    world_size: int
    ranks: list[Tree]
    server: str | None


class PlannedRun(TypedDict):
    """The plan of a run; `resumes` says whether it would continue an existing one."""

    experiment: str
    folder: str
    resumes: bool
    plan: PlanOutput
    launch: LaunchOutput


class CheckOutput(PlannedRun):
    """The plan of a run that could start. `rows` is null without --rows."""

    ok: Literal[True]
    rows: Tree | None


@dataclass(frozen=True, kw_only=True)
class TrainOutput(RunResult):
    dry_run: Literal[False]


class DryRunResult(PlannedRun):
    dry_run: Literal[True]


class SweepOutput(TypedDict):
    """The runs of a sweep and what `rlhf compare` says of them, null before any of them has logged."""

    sweep: str
    dry_run: bool
    runs: list[RunResult]
    comparison: CompareOutput | None


class ConfigOutput(TypedDict):
    """`rlhf show`: the configuration, or the part that was named, and where each key was written."""

    config: Tree
    origins: dict[str, str]


class AgainstOutput(TypedDict):
    """`rlhf show --against`: each difference has its `key` and both values, `here` and `there`, with their origin."""

    here: str
    there: str
    differences: list[Tree]


@dataclass(frozen=True, kw_only=True)
class AuditOutput(AuditResult):
    """`holes` are the kinds of degenerate answer that training would find; `advice` is what to type against them."""

    is_sound: bool | None
    holes: list[str]  # type: ignore[assignment]


class ScoredRowOutput(TypedDict):
    """A row. Each reward has `raw`, `effective`, `weighted`, `open` and `error`; `label` is there with --label."""

    prompt: JsonValue
    completion: JsonValue
    label: NotRequired[JsonValue]
    total: float
    rewards: dict[str, Tree]


class ScoreOutput(TypedDict):
    """`label` is there with --label, `against` (the same rows under another weighting) with --against."""

    rows: list[ScoredRowOutput]
    summary: dict[str, Tree]
    no_total: NotRequired[str]
    distributions: dict[str, Tree]
    correlations: list[ScoreCorrelation]
    label: NotRequired[Tree]
    against: NotRequired[TwoWeightings]


class MeasureOutput(TypedDict):
    """A measure, its metric (for --weights the weight of each reward), and which direction is better, in words."""

    label: str
    metric: str | dict[str, float]
    kind: str
    direction: str


class SettingOutput(TypedDict):
    """Runs that differ in their seed alone: the run of each seed, and an estimate for each measure."""

    name: str
    values: dict[str, str]
    seeds: dict[str, str]
    estimates: dict[str, Estimate]


class ComparedRun(TypedDict):
    """A run with its value of each measure, and of each key that differs."""

    name: str
    place: str
    state: str
    step: int
    max_steps: int | None
    reason: str | None
    trainer: str | None
    differs: dict[str, str]
    values: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class DifferenceOutput(PairedDifference):
    """`value` compared with `other` over common seeds. `outcome` is about `value`: better, worse, undecided ..."""

    degrees: int
    seeds_needed: int | None


class VerdictOutput(TypedDict):
    """A verdict on one measure; `winner` is significantly better than all other values, or null."""

    measure: str
    direction: str
    by: str
    baseline: str | None
    text: str
    winner: str | None
    values: dict[str, Estimate]
    differences: list[DifferenceOutput]


class CompareOutput(TypedDict):
    """Runs side by side. `no_verdict` says why `verdicts` is empty; `front` is the Pareto front."""

    window: str
    estimator: str
    differs: list[Tree]
    measures: list[MeasureOutput]
    settings: list[SettingOutput]
    runs: list[ComparedRun]
    no_verdict: str | None
    verdicts: list[VerdictOutput]
    front: Tree | None
    total: str | None
    notes: list[str]
    left_out: list[str]


@dataclass(frozen=True, kw_only=True)
class WhyOutput(Diagnosis):
    """The diagnosis of a run: findings with evidence and advice, the worst first."""

    run: str
    state: str | None
    reason: str | None
    step: int | None
    max_steps: int | None
    log_events: int | None
    problem: str | None


class WhatifOutput(TypedDict):
    """One answer per question, with a row per stored round, and the completions that move most."""

    run: str
    questions: list[Tree]


class EvalOutput(TypedDict):
    """The evaluation of a policy or of a reward model: what RUN/eval/NAME.json holds (docs/how-to/evaluation.md)."""

    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc]

    kind: str
    name: str
    model: str
    path: str
    data: str
    time: float
    warnings: list[str]
    rows: int


class GenerateOutput(TypedDict):
    """The curve of the best of n, and the data files that were written, with what was left out of them and why."""

    model: str
    path: str
    data: str
    time: float
    samples: int
    settings: Tree
    prompts: int
    by: str
    curve: list[BestOfK]
    prompts_without_score: int
    made: dict[str, Tree]
    warnings: list[str]
    files: list[str]


@dataclass(frozen=True, kw_only=True)
class ExportOutput(ExportedModel):
    pushed_to: str | None


class VerifyOutput(TypedDict):
    """`state` over all runs is met, missed or open; each run has its expectations."""

    state: Literal["met", "missed", "open"]
    runs: list[Tree]


class ReproduceOutput(TypedDict):
    """Whether the run came out the same, else the first step and metric that differ, and recorded causes."""

    equal: bool
    run: str
    again: str
    steps: int
    equal_steps: int
    log_events: int
    numbers: int
    of_the_clock: list[str]
    first_difference: Tree | None
    weights: list[Tree]
    causes: list[dict[Literal["kind", "name", "before", "after"], str]]
    unrepeatable: list[str]


class SyncOutput(TypedDict):
    """A run or a sweep's report: `sent`, `to send`, `not sent`, or left as it is and why."""

    run: str
    state: str
    why: str
    files: list[str]


OUTPUTS: dict[str, type | UnionType] = {
    "init": InitOutput,
    "doctor": DoctorOutput,
    "list": ListOutput,
    "check": CheckOutput,
    "show": ConfigOutput | AgainstOutput,
    "audit": AuditOutput,
    "score": ScoreOutput,
    "train": TrainOutput | SweepOutput | DryRunResult,
    "resume": RunResult | SweepOutput,
    "status": list[RunState],
    "join": RunResult,
    "compare": CompareOutput,
    "report": WrittenReport,
    "why": WhyOutput | list[WhyOutput],
    "whatif": WhatifOutput,
    "eval": EvalOutput,
    "generate": GenerateOutput,
    "verify": VerifyOutput,
    "reproduce": ReproduceOutput,
    "export": ExportOutput,
    "sync": list[SyncOutput],
    "schema": Tree,
}
"""Verb -> the type of what it prints with `--json` if it succeeds."""


class _OutputSchema(GenerateJsonSchema):
    """Objects have exactly the keys of their class, without defaults; a float may be null, which stands for NaN."""

    def dataclass_schema(self, schema: core_schema.DataclassSchema) -> JsonSchemaValue:
        return {"additionalProperties": False, **super().dataclass_schema(schema)}

    def typed_dict_schema(self, schema: core_schema.TypedDictSchema) -> JsonSchemaValue:
        return {"additionalProperties": False, **super().typed_dict_schema(schema)}

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    def float_schema(self, schema: core_schema.FloatSchema) -> JsonSchemaValue:
        return {"type": ["number", "null"]}

    def field_is_required(
        self, field: core_schema.ModelField | core_schema.DataclassField | core_schema.TypedDictField, total: bool
    ) -> bool:
        return bool(field.get("required", True))


def output_schema(verb: str) -> JsonSchemaValue:
    """Return the JSON Schema of what a verb prints with `--json`, errors included."""
    output: TypeAdapter[object] = TypeAdapter(OUTPUTS[verb] | ProblemsOutput)  # type: ignore[arg-type]
    schema = output.json_schema(mode="serialization", schema_generator=_OutputSchema)
    return {"title": f"rlhf {verb} --json", **schema}
