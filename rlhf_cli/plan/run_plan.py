"""The plan of a run and its counts, as known before the start."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf_cli.plan.batches import BatchPlan, StagePlan, count
from rlhf_cli.runs.tracking.tracked_run import TrackingPlan
from rlhf_cli.tables.passes import Passes

if TYPE_CHECKING:
    from rlhf_cli.plan.memory_estimate import MemoryPlan


@dataclass(frozen=True)
class Workload:
    """The totals of a run over all its processes; None if they depend on data that is not read yet.

    `rounds` of generation are a fraction if the run ends within a round, which is still generated in full, and have
    `steps_a_round` optimizer steps. `rows` counts rows trained on as they are; `epochs` are passes over the data in
    both cases. `max_tokens` are generated, or trained on. `longest_prompt` and `longest_row` are in tokens.
    """

    steps: int | None = None
    rounds: float | None = None
    steps_a_round: float | None = None
    prompts: int | None = None
    completions: int | None = None
    rows: int | None = None
    epochs: float | None = None
    max_tokens: int | None = None
    longest_prompt: int | None = None
    longest_row: int | None = None


@dataclass(frozen=True)
class Evaluations:
    """How often a run is evaluated, on how many `rows`, with how many `completions` per evaluation. `times` and `rows`
    are None if the data decides; `every` says when, in words.
    """

    every: str
    times: int | None
    rows: int | None
    completions: int | None


@dataclass(frozen=True)
class Checkpoints:
    """How often a checkpoint is saved (`times` is None if the data decides), and what is written, None if unknown: at
    most `at_once` checkpoints exist at a time; `total_bytes` are theirs and those of the model at the end.
    """

    every: str
    times: int | None
    checkpoint_bytes: int | None = None
    at_once: int | None = None
    model_bytes: int | None = None
    total_bytes: int | None = None


@dataclass(frozen=True)
class Notice:
    """A remark worth showing before a run starts that is not an error; `subject` is one word."""

    subject: str
    text: str


@dataclass(frozen=True)
class Plan:
    """What a run will do. `columns` is empty and `num_rows` None if a hub dataset decides; nothing in the run reads the
    columns `unread`. It has `batches` if its trainer generates, else a `stage`.
    """

    model: str
    data: str
    columns: tuple[str, ...]
    unread: tuple[str, ...]
    num_rows: int | None
    rewards: dict[str, str]  # name -> its function or model
    processes: int
    batches: BatchPlan | None
    stage: StagePlan | None
    tracking: TrackingPlan
    files: dict[str, Path]  # reward code, data, local models and accelerate's file, whose hashes go into the provenance
    accelerate_env: dict[str, str]  # what accelerate makes of `launch.accelerate_config`: variables for the ranks
    memory: MemoryPlan | None  # the device memory a process needs; None if it was not asked for
    workload: Workload
    notices: tuple[Notice, ...] = ()
    evaluations: Evaluations | None = None
    checkpoints: Checkpoints | None = None
    num_held_out: int | None = None  # rows held out of training; None if there are none, or if the data decides
    passes: Passes | None = None  # None if nothing is generated, or if only the loaded model can tell

    def describe_steps(self) -> str:
        """Describe the optimizer steps: `320 = 20 rounds x 16; 4 x 8 completions per device`."""
        work, batches = self.workload, self.batches
        if batches is None or work.steps_a_round is None:
            return self.stage.describe_steps() if self.stage is not None else ""
        a_round = f"{work.steps_a_round:.4g}"
        if work.rounds is None:
            return f"unknown until the data is read, {a_round} a round"
        each = f"{batches.accumulation} x {batches.per_device} completions per device"
        if work.steps_a_round == 1:
            return f"{work.steps}, one round each; {each}"
        text = f"{work.steps} = {count(work.rounds, 'round')} x {a_round}; {each}"
        return text + ("" if work.rounds.is_integer() else "; the last round is used in part")

    def as_json(self) -> dict[str, object]:
        """Return the plan as JSON values: a part is null if the run does not have it, a number if the data decides."""
        parts: dict[str, Any] = {"round": self.batches, "stage": self.stage, "workload": self.workload}
        parts |= {"evaluations": self.evaluations, "checkpoints": self.checkpoints, "passes": self.passes}
        return {
            **{name: getattr(self, name) for name in ("model", "data", "columns", "num_rows", "rewards", "processes")},
            **{name: None if part is None else asdict(part) for name, part in parts.items()},
            "memory": None if self.memory is None else self.memory.as_json(),
            "notices": [asdict(notice) for notice in self.notices],
        }
