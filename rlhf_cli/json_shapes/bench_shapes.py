"""Describes what the verbs print that look at an experiment, its rewards and its model."""

from __future__ import annotations

from pydantic import RootModel

from rlhf_cli.json_shapes.anything import Anything, Tree
from rlhf_cli.json_shapes.shape import Estimate, Shape


class Shown(Shape):
    """`rlhf show`: the configuration, or the part that was asked for, and where each key of it was written."""

    config: Tree
    origins: dict[str, str]


class Side(Shape):
    """A value on one side: `is_there` is false where the key is not, `origin` null where the value is our default."""

    value: Anything
    origin: str | None
    is_there: bool


class DifferentKey(Shape):
    """A key that has another value there."""

    key: str
    here: Side
    there: Side


class Against(Shape):
    """`rlhf show --against`: what differs between two configurations."""

    here: str
    there: str
    differences: list[DifferentKey]


class ShownOrAgainst(RootModel[Shown | Against]):
    """`rlhf show`, with or without --against."""


class AnsweredRow(Shape):
    """A row of `rlhf score`. Of each reward: `raw`, `effective`, `weighted`, `open`, `error`. `label` with --label."""

    prompt: Anything
    completion: Anything
    label: Anything = None
    total: float | None
    rewards: dict[str, Tree]


class Summary(Shape):
    """A reward over all rows."""

    mean: float | None
    effective_mean: float | None
    weighted_mean: float | None
    open_fraction: float | None
    excluded: int
    errors: int
    calls: int


class Distribution(Shape):
    """How a reward, the total or the length lies: `quantiles` by share, `bins` counts of as many equal parts."""

    count: int
    mean: float | None
    deviation: float | None
    quantiles: dict[str, float]
    bins: list[int]
    distinct: int


class Correlation(Shape):
    """What goes with what: Spearman's (`ranks`) and Pearson's (`linear`) correlation over `count` rows."""

    first: str
    second: str
    ranks: float | None
    linear: float | None
    count: int


class Agreement(Shape):
    """How well a reward, or the total, tells the good answers: by ROC AUC, and where it is cut at `threshold`."""

    name: str
    num_good: int
    num_bad: int
    roc_auc: float | None
    threshold: float | None
    agreement: Estimate


class Label(Shape):
    """`column` says which answers are good; `disagreeing_rows` are those where the total, cut at its best, does not."""

    column: str
    agreements: list[Agreement]
    disagreeing_rows: list[int]


class Scored(Shape):
    """`rlhf score`. `label` with --label, `against` with --against, the same rows under another weighting."""

    rows: list[AnsweredRow]
    summary: dict[str, Summary]
    distributions: dict[str, Distribution]
    correlations: list[Correlation]
    label: Label | None = None
    against: Tree | None = None


class Attack(Shape):
    """A kind of degenerate answer. `share` is how often it gets as much as the right one, `let_in` by which reward."""

    name: str
    caption: str
    text: str
    mean_total: float | None
    rows: int
    beats: int
    ties: int
    share: Estimate
    margin: float | None
    is_hole: bool
    is_near: bool
    let_in: str | None
    contributions: dict[str, Tree]
    errors: dict[str, Anything]
    shown_row: int | None


class Audited(Shape):
    """`rlhf audit`: `holes` are the kinds that a training would find; `advice` what to type against them."""

    is_sound: bool
    holes: list[str]
    rows: int
    texts: int
    gold_source: str | None
    gold_way: str | None
    gold_text: str | None
    gold_total: float | None
    gold_contributions: dict[str, float | None]
    gold_raw: dict[str, float | None]
    main: str | None
    num_unrecognised: int
    unrecognised: bool
    blind: list[str]
    kinds: list[Attack]
    left_out: dict[str, str]
    notes: list[str]
    advice: list[Anything]


class BestOf(Shape):
    """What the best of k answers is worth: by `score`, and what the other rewards are there; `kl_bound` in nats."""

    k: int
    score: Estimate
    rewards: dict[str, Tree]
    truncated: Estimate
    kl_bound: float


class Made(Shape):
    """A file that was written, its rows, and what was left out of it and why."""

    rows: int
    left_out: dict[str, int]


class Generated(Shape):
    """`rlhf generate`: the curve of the best of n, and the files of data that were made."""

    model: str
    path: str
    data: str
    time: float
    samples: int
    settings: Tree
    prompts: int
    by: str
    curve: list[BestOf]
    prompts_without_score: int
    made: dict[str, Made]
    warnings: list[str]
    files: list[str]
