"""Describes what the verbs print that begin, go on with and watch runs."""

from __future__ import annotations

from typing import Literal

from pydantic import RootModel

from rlhf_cli.json_shapes.anything import Tree
from rlhf_cli.json_shapes.comparison_shapes import Compared
from rlhf_cli.json_shapes.shape import PlannedRun, RunResult, Shape


class Checked(PlannedRun):
    """`rlhf check`: the plan of a run that could start. `rows` are those of --rows, null without."""

    ok: Literal[True]
    rows: Tree | None


class DryRun(PlannedRun):
    """`rlhf train --dry-run`: what would be started."""

    dry_run: Literal[True]


class Trained(RunResult):
    """`rlhf train`: what came of the run."""

    dry_run: Literal[False]


class Swept(Shape):
    """`rlhf train -m` and `rlhf resume SWEEP`: its runs, and what `rlhf compare` says of them, null before any has
    logged."""

    sweep: str
    dry_run: bool
    runs: list[RunResult]
    comparison: Compared | None


class StatusRow(Shape):
    """A run of `rlhf status`. `time_left_s` is null where it does not train; `slurm_state` is Slurm's own word."""

    run: str
    state: str
    step: int
    max_steps: int | None
    s_per_step: float | None
    time_left_s: float | None
    log_age_s: float | None
    last_checkpoint: str | None
    job_id: str | None
    slurm_state: str | None
    reason: str | None


class Sent(Shape):
    """A run, or a sweep's report, of `rlhf sync`: `sent`, `to send`, `not sent` or left as it is, and why."""

    run: str
    state: str
    why: str | None
    files: list[str]


class Train(RootModel[Trained | Swept | DryRun]):
    """`rlhf train`: one run, a sweep, or what either would be."""


class Resume(RootModel[RunResult | Swept]):
    """`rlhf resume` of a run or of a sweep."""


class Status(RootModel[list[StatusRow]]):
    """`rlhf status`."""


class Sync(RootModel[list[Sent]]):
    """`rlhf sync`."""
