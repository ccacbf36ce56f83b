"""Describes what `rlhf compare` prints, and the verbs that say something of a finished run."""

from __future__ import annotations

from pydantic import ConfigDict, RootModel

from rlhf_cli.json_shapes.anything import Anything, Tree
from rlhf_cli.json_shapes.shape import Estimate, Shape


class Differing(Shape):
    """A key that differs between the runs; `keys` are those that differ together with it, `values` all it has."""

    key: str
    short: str
    keys: list[str]
    values: list[str]


class Measured(Shape):
    """A measure, with the metric it is read from and which way is better, in words."""

    label: str
    metric: str
    kind: str
    direction: str


class Setting(Shape):
    """Runs that differ in their seed alone: `values` of what differs, the run of each seed, an estimate a measure."""

    name: str
    values: dict[str, str]
    seeds: dict[str, str]
    estimates: dict[str, Estimate]


class ComparedRun(Shape):
    """A run with its value on every measure, null where it has none; `differs` has its value of every key that does."""

    name: str
    place: str
    state: str
    step: int
    max_steps: int | None
    reason: str | None
    trainer: str | None
    differs: dict[str, str]
    values: dict[str, float | None]


class Difference(Shape):
    """What `value` has more than `other`, over their common seeds; the interval holds together with all of the table.

    `outcome` is about `value`: better, worse, undecided, equal, impossible.
    """

    value: str
    other: str
    seeds: list[str]
    difference: Tree
    outcome: str
    comparisons: int
    effect: float | None
    p_value: float | None
    p_adjusted: float | None
    degrees: int
    seeds_needed: int | None


class Verdict(Shape):
    """What one measure says about the values of `by`; `winner` is beyond doubt better than all others, else null."""

    measure: str
    direction: str
    by: str
    baseline: str | None
    text: str
    winner: str | None
    values: dict[str, Tree]
    differences: list[Difference]


class Compared(Shape):
    """`rlhf compare`: runs side by side. `no_verdict` says why `verdicts` is empty though settings differ.

    `front` is the Pareto front, `total` how the total is made, null for none.
    """

    window: str
    estimator: str
    differs: list[Differing]
    measures: list[Measured]
    settings: list[Setting]
    runs: list[ComparedRun]
    no_verdict: str | None
    verdicts: list[Verdict]
    front: Tree | None
    total: str | None
    notes: list[str]
    left_out: list[str]


class Reported(Shape):
    """`rlhf report`: where the page is, and what it holds."""

    path: str
    num_bytes: int
    runs: int
    settings: int
    plots: int
    completion_steps: int
    left_out: list[str]


class Fine(Shape):
    """Something that was looked at and is as it should be."""

    kind: str
    says: str


class Unseen(Shape):
    """Something that could not be looked at, and why."""

    kind: str
    why: str


class Diagnosed(Shape):
    """`rlhf why RUN`, of several runs a list: findings with evidence and advice, the worst first."""

    run: str
    state: str | None
    reason: str | None
    step: int | None
    max_steps: int | None
    log_events: int | None
    problem: str | None
    findings: list[Tree]
    fine: list[Fine]
    unseen: list[Unseen]


class Why(RootModel[Diagnosed | list[Diagnosed]]):
    """`rlhf why` of one run, or of several."""


class Hindsight(Shape):
    """`rlhf whatif`: an answer a question, with a row a stored round, and the completions that move most."""

    run: str
    questions: list[Tree]


class Evaluated(Shape):
    """`rlhf eval` of a policy or of a reward model (`kind`): what RUN/eval/NAME.json holds. docs/evaluation.md."""

    model_config = ConfigDict(extra="allow", strict=True)

    kind: str
    name: str
    model: str
    path: str
    data: str
    time: float
    warnings: list[str]
    rows: int
    __pydantic_extra__: dict[str, Anything]
