"""Says of every verb what it prints with `--json`, where it ends well."""

from __future__ import annotations

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from rlhf_cli.json_shapes import bench_shapes as bench
from rlhf_cli.json_shapes import comparison_shapes as comparison
from rlhf_cli.json_shapes import project_shapes as project
from rlhf_cli.json_shapes import run_shapes as runs
from rlhf_cli.json_shapes.shape import Problems, RunResult
from rlhf_cli.text.json_values import JsonTree

SHAPES: dict[str, type[BaseModel]] = {
    "init": project.Begun,
    "doctor": project.Doctored,
    "list": project.Listed,
    "check": runs.Checked,
    "show": bench.ShownOrAgainst,
    "audit": bench.Audited,
    "score": bench.Scored,
    "train": runs.Train,
    "resume": runs.Resume,
    "status": runs.Status,
    "join": RunResult,
    "compare": comparison.Compared,
    "report": comparison.Reported,
    "why": comparison.Why,
    "whatif": comparison.Hindsight,
    "eval": comparison.Evaluated,
    "generate": bench.Generated,
    "verify": project.Verified,
    "reproduce": project.Reproduced,
    "export": project.Exported,
    "sync": runs.Sync,
    "schema": project.Schema,
}
"""Verb -> the shape of its JSON. What is wrong is `Problems` for all of them."""


def output_schema(verb: str) -> JsonTree:
    """Return what a verb prints with `--json` as JSON Schema, problems included."""
    of_model, schema = models_json_schema([(SHAPES[verb], "validation"), (Problems, "validation")])
    return {"title": f"rlhf {verb} --json", "anyOf": list(of_model.values()), **schema}
