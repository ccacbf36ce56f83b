"""Defines the plan of a run: what the start panel shows and the launcher uses."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path

from rlhf_cli.memory.moments import MemoryPlan
from rlhf_cli.plan.launch_problems import Machine
from rlhf_cli.plan.rollout_batches import BatchPlan
from rlhf_cli.plan.row_batches import StagePlan
from rlhf_cli.plan.workload_counts import Checkpoints, Evaluations, Workload
from rlhf_cli.tables.pass_modes import Passes
from rlhf_cli.tracking.tracking_plan import TrackingPlan


@dataclass(frozen=True)
class Notice:
    """A remark worth showing before a run starts that is not an error; `subject` is one word."""

    subject: str
    text: str


@dataclass(frozen=True)
class Plan:
    """What a run will do.

    `columns` is empty and `num_rows` None if a hub dataset decides. `batches` is None for a trainer that does not
    generate, `stage` for one that does.
    """

    model: str
    data: str
    columns: tuple[str, ...]
    num_rows: int | None
    rewards: dict[str, str]
    """Maps each reward's name to its function or model."""
    processes: int
    batches: BatchPlan | None
    stage: StagePlan | None
    """Set for a trainer that trains on its rows and does not generate."""
    tracking: TrackingPlan
    files: dict[str, Path]
    """Reward code, data files and accelerate's file, whose hashes go into the provenance."""
    machine: Machine
    notices: tuple[Notice, ...] = ()
    memory: MemoryPlan = field(default_factory=MemoryPlan)
    """The device memory a process needs."""
    workload: Workload = field(default_factory=Workload)
    """Rounds, prompts, completions and tokens of the whole run."""
    evaluations: Evaluations | None = None
    checkpoints: Checkpoints | None = None
    num_held_out: int | None = None
    """Number of rows held out of training; None if there are none, or if the data decides."""
    passes: Passes | None = None
    """How rows go through the models of a trainer that generates; None if only the loaded model can tell."""

    def as_json(self) -> dict[str, object]:
        """Return the plan as JSON values: a part is null if the run does not have it, a number if the data decides."""
        return {
            "model": self.model,
            "data": self.data,
            "columns": list(self.columns),
            "num_rows": self.num_rows,
            "rewards": dict(self.rewards),
            "processes": self.processes,
            "round": asdict(self.batches) if self.batches is not None else None,
            "stage": asdict(self.stage) if self.stage is not None else None,
            "workload": self.workload.as_json(),
            "evaluations": self.evaluations.as_json() if self.evaluations is not None else None,
            "checkpoints": self.checkpoints.as_json() if self.checkpoints is not None else None,
            "passes": asdict(self.passes) if self.passes is not None else None,
            "memory": self.memory.as_json(),
            "notices": [{"subject": notice.subject, "text": notice.text} for notice in self.notices],
        }
