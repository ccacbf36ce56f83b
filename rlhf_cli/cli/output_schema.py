"""Describe what every verb prints with `--json` as JSON Schema.

`OUTPUTS` maps each verb to the type of its value: a dataclass that it prints, or the keys of an object that it makes.
"""

# mypy: disable-error-code="valid-type"
# The types here are made as the program runs.

from __future__ import annotations

import operator
from typing import Literal, NotRequired, TypeAlias, get_type_hints

from pydantic import ConfigDict, JsonValue, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema
from typing_extensions import TypedDict

from rlhf_cli.analysis.audit.audit_result import AuditResult
from rlhf_cli.analysis.comparison.verdicts import PairedDifference
from rlhf_cli.analysis.diagnosis.run_diagnosis import Diagnosis
from rlhf_cli.display.page.page_content import WrittenReport
from rlhf_cli.measure.best_of_n import BestOfK
from rlhf_cli.measure.score_bench import ScoreCorrelation
from rlhf_cli.numerics.intervals import Estimate
from rlhf_cli.plan.batches import BatchPlan, StagePlan
from rlhf_cli.plan.run_plan import Evaluations, Notice, Workload
from rlhf_cli.project.doctor import Condition
from rlhf_cli.project.export.exported_folder import ExportedModel
from rlhf_cli.project.reference.key_reference import MetricReference
from rlhf_cli.runs.run_status import RunResult, RunState
from rlhf_cli.tables.passes import Passes

Tree: TypeAlias = dict[str, JsonValue]
"""An object whose keys are the user's, or are described elsewhere."""
Texts: TypeAlias = dict[str, str]
_TEXT, _COUNT, _TREE = str | None, int | None, Tree | None
Keys: TypeAlias = tuple[object, str]
"""A type, and the names of the keys that have it."""


def _object(name: str, *keys: Keys, text: str = "", like: type | None = None) -> type:
    """Return the type of an object with these keys, beside those of the dataclass `like`; `text` describes it."""
    types = get_type_hints(like) if like is not None else {}
    types |= {key: kind for kind, names in keys for key in names.split()}
    made = TypedDict(name, types)  # type: ignore[misc]
    made.__doc__ = text or None
    return made


_PROBLEM = _object(
    "Problem",
    (str, "kind what"),
    (_TEXT, "where got expected try advice"),
    text="A mistake. `try` is a command or an override to type (words in capitals stand for yours); else see `advice`."
    " `kind` is the class of the error: ConfigError, DataError, RewardError, ModelError, RunError ...",
)
PROBLEMS = _object("ProblemsOutput", (list[_PROBLEM], "problems"), text="What every verb prints if it fails.")

_OPTION = _object("OptionOutput", (str, "name caption file"))
_KEY = _object(
    "KeyOutput",
    (str, "key type text"),
    (NotRequired[JsonValue], "default"),
    (list[str], "values holds"),
    text="A key of the configuration, required if it has no `default`; `holds` are the keys below it.",
)
_OPTION_PAGE = _object("OptionPage", (str, "group name caption file text"), text="`rlhf list GROUP NAME`.")
_REWARD_PAGE = _object(
    "RewardPage",
    (_TEXT, "name fn conf_file"),
    (str, "caption summary text yaml override file"),
    (list[Tree], "arguments columns"),
    (_TREE, "example"),
    (_COUNT, "line"),
    text="`rlhf list reward NAME`. An argument without `default` is required; `shipped` is its value in conf_file.",
)
_TRAINER_PAGE = _object(
    "TrainerPage",
    (str, "name caption trl conf_file"),
    (bool, "has_critic"),
    (list[Tree], "arguments"),
    text="`rlhf list trainer NAME`. The `key` of an argument is null if another key, `set_by`, sets it.",
)

_PLAN = _object(
    "PlanOutput",
    (str, "model data"),
    (list[str], "columns"),
    (_COUNT, "num_rows"),
    (Texts, "rewards"),
    (int, "processes"),
    (BatchPlan | None, "round"),
    (StagePlan | None, "stage"),
    (Workload, "workload"),
    (Evaluations | None, "evaluations"),
    (Passes | None, "passes"),
    (_TREE, "checkpoints"),
    (Tree, "memory"),
    (list[Notice], "notices"),
    text="What a run will do. Counts are null if a dataset of the hub decides; sizes are in bytes.",
)
_LAUNCH = _object(
    "LaunchOutput",
    (bool, "in_this_process"),
    (int, "nodes world_size"),
    (list[Tree], "ranks"),
    (_TEXT, "server"),
    text="What would be started: the ranks of this machine (`rank`, `gpu`, `command`), of `world_size` on all `nodes`.",
)
_PLANNED: tuple[Keys, ...] = ((str, "experiment folder"), (bool, "resumes"), (_PLAN, "plan"), (_LAUNCH, "launch"))
_CHECKED = _object("CheckOutput", *_PLANNED, (Literal[True], "ok"), (_TREE, "rows"), text="`rows` is for --rows.")

_SCORED_ROW = _object(
    "ScoredRowOutput",
    (JsonValue, "prompt completion"),
    (NotRequired[JsonValue], "label"),
    (float, "total"),
    (dict[str, Tree], "rewards"),
    text="A row. Each reward has `raw`, `effective`, `weighted`, `open` and `error`.",
)
_SCORES = _object(
    "ScoreOutput",
    (list[_SCORED_ROW], "rows"),
    (dict[str, Tree], "summary distributions"),
    (NotRequired[str], "no_total"),
    (list[ScoreCorrelation], "correlations"),
    (NotRequired[Tree], "label"),
)

_MEASURE = _object("MeasureOutput", (str, "label kind direction"), (str | dict[str, float], "metric"))
_SETTING = _object("SettingOutput", (str, "name"), (Texts, "values seeds"), (dict[str, Estimate], "estimates"))
_COMPARED_RUN = _object(
    "ComparedRun",
    (str, "name place state"),
    (int, "step"),
    (_COUNT, "max_steps"),
    (_TEXT, "reason trainer"),
    (Texts, "differs"),
    (dict[str, float], "values"),
)
_DIFFERENCE = _object(
    "DifferenceOutput",
    (int, "degrees"),
    (_COUNT, "seeds_needed"),
    text="`value` compared with `other` over common seeds. `outcome` is about `value`: better, worse, undecided ...",
    like=PairedDifference,
)
_VERDICT = _object(
    "VerdictOutput",
    (str, "measure direction by text"),
    (_TEXT, "baseline winner"),
    (dict[str, Estimate], "values"),
    (list[_DIFFERENCE], "differences"),
    text="A verdict on one measure; `winner` is significantly better than all other values, or null.",
)
_COMPARISON = _object(
    "CompareOutput",
    (str, "window"),
    (list[Tree], "differs"),
    (list[_MEASURE], "measures"),
    (list[_SETTING], "settings"),
    (list[_COMPARED_RUN], "runs"),
    (list[_VERDICT], "verdicts"),
    (_TREE, "front"),
    (_TEXT, "no_verdict total"),
    (list[str], "notes left_out"),
    text="Runs side by side. `no_verdict` says why `verdicts` is empty; `front` is the Pareto front.",
)
_SWEEP = _object(
    "SweepOutput",
    (str, "sweep"),
    (bool, "dry_run"),
    (list[RunResult], "runs"),
    (_COMPARISON | None, "comparison"),
    text="The runs of a sweep and what `rlhf compare` says of them, null before any of them has logged.",
)

_DIAGNOSIS = _object(
    "WhyOutput", (str, "run"), (_TEXT, "state reason problem"), (_COUNT, "step max_steps log_events"), like=Diagnosis
)
_EVALUATION = _object(
    "EvalOutput",
    (str, "kind name model path data"),
    (float, "time"),
    (list[str], "warnings"),
    (int, "rows"),
    text="What RUN/eval/NAME.json holds (docs/how-to/evaluation.md).",
)
setattr(_EVALUATION, "__pydantic_config__", ConfigDict(extra="allow"))  # noqa: B010
_GENERATED = _object(
    "GenerateOutput",
    (str, "model path data by"),
    (float, "time"),
    (int, "samples prompts prompts_without_score"),
    (Tree, "settings"),
    (list[BestOfK], "curve"),
    (dict[str, Tree], "made"),
    (list[str], "files"),
)
_REPRODUCED = _object(
    "ReproduceOutput",
    (bool, "equal"),
    (str, "run again"),
    (int, "steps equal_steps log_events numbers"),
    (_TREE, "first_difference"),
    (list[Tree], "weights"),
    (list[dict[Literal["kind", "name", "before", "after"], str]], "causes"),
)

OUTPUTS: dict[str, object] = {
    "init": _object("InitOutput", (str, "folder trains model data"), (list[str], "files next"), (Texts, "rename")),
    "doctor": _object("DoctorOutput", (bool, "can_train"), (list[Condition], "conditions")),
    "list": dict[str, list[_OPTION]] | list[_KEY] | list[MetricReference] | _OPTION_PAGE | _REWARD_PAGE | _TRAINER_PAGE,
    "check": _CHECKED,
    "show": _object("ConfigOutput", (Tree, "config"), (Texts, "origins")),
    "audit": _object("AuditOutput", (bool | None, "is_sound"), (list[str], "holes"), like=AuditResult),
    "score": _SCORES,
    "train": _object("TrainOutput", (Literal[False], "dry_run"), like=RunResult)
    | _SWEEP
    | _object("DryRunResult", *_PLANNED, (Literal[True], "dry_run")),
    "resume": RunResult | _SWEEP,
    "status": list[RunState],
    "join": RunResult,
    "compare": _COMPARISON,
    "report": WrittenReport,
    "why": _DIAGNOSIS | list[_DIAGNOSIS],
    "whatif": _object("WhatifOutput", (str, "run"), (list[Tree], "questions"), text="One answer per question."),
    "eval": _EVALUATION,
    "generate": _GENERATED,
    "verify": _object("VerifyOutput", (Literal["met", "missed", "open"], "state"), (list[Tree], "runs")),
    "reproduce": _REPRODUCED,
    "export": _object("ExportOutput", (_TEXT, "pushed_to"), like=ExportedModel),
    "sync": list[_object("SyncOutput", (str, "run state why"), (list[str], "files"))],  # type: ignore[misc]
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
    output: TypeAdapter[object] = TypeAdapter(operator.or_(OUTPUTS[verb], PROBLEMS))
    schema = output.json_schema(mode="serialization", schema_generator=_OutputSchema)
    return {"title": f"rlhf {verb} --json", **schema}
