"""Describes what the verbs print that begin a project, look things up, hold a run against what was expected of it."""

from __future__ import annotations

from pydantic import RootModel

from rlhf_cli.json_shapes.anything import Anything, Tree
from rlhf_cli.json_shapes.shape import Shape


class Option(Shape):
    """An option of a group, with the first line of its file."""

    name: str
    caption: str
    file: str


class OptionPage(Option):
    """`rlhf list GROUP NAME`: what the file says of itself."""

    group: str
    text: str


class Argument(Shape):
    """An argument of a reward. One without `default` has to be given; `shipped` is what the file of conf/ sets."""

    name: str
    type: str
    default: Anything = None
    choices: list[Anything]
    text: str
    shipped: Anything = None


class Column(Shape):
    """A column of the data that a reward reads."""

    name: str
    required: bool
    text: str


class RewardPage(Shape):
    """`rlhf list reward NAME`: what it scores, its arguments, an example that was run, YAML to paste.

    `name` and `conf_file` are null for a function of the user's.
    """

    name: str | None
    fn: str | None
    caption: str
    summary: str
    text: str
    arguments: list[Argument]
    columns: list[Column]
    example: Tree | None
    yaml: str
    override: str
    conf_file: str | None
    file: str
    line: int | None


class TrainerArgument(Shape):
    """An argument of TRL's; `key` is ours where it is set elsewhere. `here` is what `origin`, a file of ours, sets."""

    name: str
    key: str | None
    set_by: str | None
    type: str
    default: Anything = None
    choices: list[Anything]
    text: str
    config_class: str
    here: Anything = None
    origin: str | None = None


class TrainerPage(Shape):
    """`rlhf list trainer NAME`: its class in TRL, and the arguments that were asked for."""

    name: str
    caption: str
    trl: str
    has_critic: bool
    conf_file: str
    arguments: list[TrainerArgument]


class Key(Shape):
    """A key of the configuration, without `default` where it has to be given; `holds` are the keys below it."""

    key: str
    type: str
    default: Anything = None
    values: list[str]
    text: str
    holds: list[str]


class Metric(Shape):
    """A metric of metrics.jsonl; `more` are the other columns of the document's table by their heads."""

    name: str
    group: str
    text: str
    more: dict[str, str]


class Listed(RootModel[dict[str, list[Option]] | list[Key] | list[Metric] | OptionPage | RewardPage | TrainerPage]):
    """`rlhf list`: groups with their options, keys, metrics, or the page of one option."""


class Begun(Shape):
    """`rlhf init`: the files that were written, and what to type next."""

    folder: str
    files: list[str]
    trains: str
    model: str
    data: str
    rename: dict[str, str]
    next: list[str]


class Condition(Shape):
    """Something that training needs or could use: `state` is ok, warn, missing or unfit; `fix` what to type."""

    area: str
    name: str
    state: str
    found: str
    fix: str | None
    is_needed: bool


class Doctored(Shape):
    """`rlhf doctor`."""

    can_train: bool
    conditions: list[Condition]


class Exported(Shape):
    """`rlhf export`: the folder, what it holds, and where it was pushed to."""

    folder: str
    kind: str
    step: int
    merged: bool
    files: list[str]
    bytes: int
    weights_sha256: str
    notes: list[str]
    pushed_to: str | None


class Verified(Shape):
    """`rlhf verify`: `state` over all runs is met, missed or open; of each run its expectations."""

    state: str
    runs: list[Tree]


class Cause(Shape):
    """Something that was recorded of both runs and differs."""

    kind: str
    name: str
    before: Anything
    after: Anything


class Reproduced(Shape):
    """`rlhf reproduce`: whether the run came out the same, or the step and metric that first differ."""

    equal: bool
    run: str
    again: str
    steps: int
    equal_steps: int
    log_events: int
    numbers: int
    of_the_clock: list[str]
    first_difference: Tree | None
    weights: list[Anything]
    causes: list[Cause]
    unrepeatable: list[Anything]


class SchemaFile(Shape):
    """`rlhf schema --out`: where it was written, of what."""

    path: str
    of: str


class Schema(RootModel[SchemaFile | Tree]):
    """`rlhf schema`: the schema, or where it is."""
