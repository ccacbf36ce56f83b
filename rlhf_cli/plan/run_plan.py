"""Defines what is known of a run before it starts: the plan that the start panel shows and the run is begun with."""

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
    """Something that is no mistake and should be known before a run starts; `subject` is one word."""

    subject: str
    text: str


@dataclass(frozen=True)
class Plan:
    """A plan that says what a run will do.

    `columns` is empty and `num_rows` None where a hub dataset decides. `batches` is None for a trainer that does not
    generate, `stage` for one that does.
    """

    model: str
    data: str
    columns: tuple[str, ...]
    num_rows: int | None
    rewards: dict[str, str]
    """Maps each reward's name to what scores it."""
    processes: int
    batches: BatchPlan | None
    stage: StagePlan | None
    """Holds the numbers of a trainer that learns from its rows and does not generate."""
    tracking: TrackingPlan
    files: dict[str, Path]
    """Names the reward code, the data files and accelerate's, for the hashes in the provenance."""
    machine: Machine
    notices: tuple[Notice, ...] = ()
    memory: MemoryPlan = field(default_factory=MemoryPlan)
    """Says what a process needs of its device's memory."""
    workload: Workload = field(default_factory=Workload)
    """Counts rounds, prompts, completions and tokens of the whole run."""
    evaluations: Evaluations | None = None
    checkpoints: Checkpoints | None = None
    num_held_out: int | None = None
    """Counts the rows that are kept from training; None for none, and where the data decides."""
    passes: Passes | None = None
    """Says how rows go through the models of a trainer that generates; None where only the loaded model says it."""

    def as_json(self) -> dict[str, object]:
        """Return the plan as JSON has it; a part is null where the run has none, a number where the data decides."""
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
