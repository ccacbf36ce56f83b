"""Defines what all shapes have in common, and what several verbs print."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from rlhf_cli.json_shapes.anything import Anything, Tree


class Shape(BaseModel):
    """An object that has these keys and no others, with values of these types."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Problem(Shape):
    """Something that is wrong: `what`, `where` (key, file and line), what was got and expected, what to type next.

    `try` can be typed as it stands, but for words in capitals; `advice` is what to do in words. One of them is null.
    `kind` is the name of the error: ConfigError, DataError, RewardError, ModelError, RunError ...
    """

    kind: str
    what: str
    where: str | None
    got: str | None
    expected: str | None
    hint: str | None = Field(alias="try")
    advice: str | None


class Problems(Shape):
    """What every verb prints where it ends with an exit code other than 0 and has nothing else to say."""

    problems: list[Problem] = Field(min_length=1)


class Estimate(Shape):
    """A mean with its 95 % interval over `count` of what is measured; null where there is none."""

    mean: float | None
    low: float | None
    high: float | None
    count: int


class Span(Shape):
    """A reward over a run: the mean of its first and of its last tenth of log events."""

    start: float
    end: float


class RunResult(Shape):
    """What came of a run. `metrics` are every metric's last value; `rewards` the raw ones and the total, `reward`.

    `state` is created, queued, running, finished, failed, preempted, killed or unreadable; `reason` says why it ended
    before its last step. `model` and `last_checkpoint` are folders, null where there is none yet.
    """

    run: str
    state: str
    step: int
    max_steps: int | None
    reason: str | None
    job_id: str | None
    warnings: int
    rewards: dict[str, Span]
    metrics: dict[str, Anything]
    model: str | None
    last_checkpoint: str | None


class Rank(Shape):
    """A process that trains: its GPU, null on a CPU, and its command as a shell runs it."""

    rank: int
    gpu: str | None
    command: str


class Launch(Shape):
    """What would be started: the ranks of this machine, of `world_size` on all `nodes`; `server` generates for them."""

    in_this_process: bool
    nodes: int
    world_size: int
    ranks: list[Rank]
    server: str | None


class Notice(Shape):
    """Something that is no mistake and should be known before a run starts."""

    subject: str
    text: str


class Plan(Shape):
    """What a run will do. `round` is null for a trainer that does not generate, `stage` for one that does.

    Counts are null where a dataset of the hub decides. `workload` counts steps, rounds, prompts, completions, tokens;
    `passes` says how rows go through the models, and is null where that is known when they are loaded.
    `checkpoints` and `memory` count bytes; `memory.fullest` has the fullest moment of generation and of training.
    """

    model: str
    data: str
    columns: list[str]
    num_rows: int | None
    rewards: dict[str, str]
    processes: int
    round: Tree | None
    stage: Tree | None
    workload: Tree
    evaluations: Tree | None
    checkpoints: Tree | None
    passes: Tree | None
    memory: Tree
    notices: list[Notice]


class PlannedRun(Shape):
    """What a run would be, and where; `resumes` where it would go on with one that is there."""

    experiment: str
    folder: str
    resumes: bool
    plan: Plan
    launch: Launch
