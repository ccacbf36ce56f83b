"""The sections `launch`, `track` and `run`: where an experiment runs, who watches, where it is kept."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rlhf_cli.config.schema.section import Section


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
