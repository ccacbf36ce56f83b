"""Decide whether `rlhf train -m` starts a search, and check its space at the corners before the first trial."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlhf_cli.config.origins import Origins
from rlhf_cli.config.rules.sweep_rules import moves_the_total, moving_total
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.sweep_section import Sweep
from rlhf_cli.errors import ConfigError, UserError
from rlhf_cli.jobs.prepare import prepare
from rlhf_cli.json_values import JsonTree
from rlhf_cli.sweeps.checked_jobs import Known
from rlhf_cli.sweeps.job_names import names_of
from rlhf_cli.sweeps.objective import Objective, read_objective
from rlhf_cli.sweeps.search_space import Space, from_section, refuse_seeds, split_words
from rlhf_cli.sweeps.sweep_grid import Job, grid_of

SECTION = "sweep"
_TOTAL = "reward"


@dataclass(frozen=True)
class SearchPlan:
    """A search: its objectives, its space, and the words that apply to every trial."""

    sweep: Sweep
    objectives: tuple[Objective, ...]
    space: Space
    fixed: tuple[str, ...]
    seed: int

    def job(self, number: int, words: Sequence[str]) -> Job:
        """Return the job of a trial, named by its number and its settings as far as they fit."""
        values = {key: value for key, _, value in (word.partition("=") for word in words)}
        shown = {"trial": str(number), **{key: few_digits(value) for key, value in values.items()}}
        (name,) = names_of([shown])
        return Job(name, values, (*self.fixed, *words))

    def corners(self) -> list[Job]:
        """Return jobs that together set every key to its ends, or to each of its options."""
        first = {key: may_be.corners()[0] for key, may_be in self.space.items()}
        rows = [first]
        for key, may_be in self.space.items():
            rows += [{**first, key: corner} for corner in may_be.corners()[1:]]
        names = names_of(rows)
        words = [tuple(f"{key}={value}" for key, value in row.items()) for row in rows]
        return [Job(name, row, (*self.fixed, *typed)) for name, row, typed in zip(names, rows, words, strict=True)]


def search_plan(typed: list[str], known: Known | None = None) -> SearchPlan | None:
    """Return the search that the words describe, or None if they describe a grid.

    A search needs a `sweep` section that sets a goal. The experiment composed to find out is put into `known`; for a
    grid it is the first job. Raise the errors of `prepare` if a search is requested but invalid, and ConfigError for a
    space that is empty, contains the seed, or changes the objective itself.
    """
    fixed, from_words = split_words(typed) if _is_typed(typed) else _of_a_grid(typed)
    words = _first_of_a_grid(typed) or [*fixed, *(f"{key}={may_be.corners()[0]}" for key, may_be in from_words.items())]
    try:
        prepared = prepare(words)
    except UserError:
        if _is_typed(typed):
            raise
        return None  # the grid reports which of its jobs are wrong
    if known is not None:
        known[tuple(words)] = prepared
    experiment = prepared.experiment
    sweep = experiment.sweep
    if sweep is None:
        return None
    space = {**_from_section(sweep, experiment, fixed), **from_words}
    _refuse(space, sweep, experiment)
    kept = tuple(word for word in fixed if not _is_of_section(word))
    objectives = tuple(read_objective(text, experiment.rewards) for text in sweep.objective)
    return SearchPlan(sweep, objectives, space, kept, experiment.seed)


def without_section(tree: JsonTree, origins: Origins) -> None:
    """Remove the section from a trial's configuration, in place, because a trial is not itself a search."""
    tree.pop(SECTION, None)


def _of_a_grid(typed: list[str]) -> tuple[list[str], Space]:
    """Return the fixed words and the space of a command that may be a search through its experiment's `sweep` section.

    If the space cannot be parsed, leave the error to the grid.
    """
    try:
        return split_words(typed)
    except ConfigError:
        return list(typed), {}


def _first_of_a_grid(typed: list[str]) -> list[str]:
    """Return the words of the first job if these describe a valid grid, else none."""
    if _is_typed(typed):
        return []
    try:
        return list(grid_of(typed).jobs[0].words)
    except UserError:
        return []


def _from_section(sweep: Sweep, experiment: Experiment, fixed: Sequence[str]) -> Space:
    keys = [word.partition("=")[0].lstrip("+") for word in fixed]
    return from_section(sweep.space, experiment.rewards, keys)


def _refuse(space: Space, sweep: Sweep, experiment: Experiment) -> None:
    if not space:
        raise ConfigError(
            "a search that may set nothing",
            where="sweep.space",
            expected="keys and what they may be",
            hint="'rewards.NAME.weight=interval(0,2)', or sweep=weights",
        )
    refuse_seeds(space)
    moving = [key for key in space if moves_the_total(key)]
    for objective in sweep.objective:
        metric = read_objective(objective, experiment.rewards).metric.removeprefix("eval_")
        if moving and (metric == _TOTAL or metric.endswith("/total")):
            raise moving_total(objective, moving, list(experiment.rewards), where="sweep.objective")


def _is_typed(words: Sequence[str]) -> bool:
    return any(_is_of_section(word) for word in words)


def _is_of_section(word: str) -> bool:
    key = word.partition("=")[0].lstrip("+")
    return key == SECTION or key.startswith(f"{SECTION}.")


def few_digits(value: str) -> str:
    """Return a number with few digits, to fit in a name. Trial numbers keep names unique."""
    try:
        return f"{float(value):.3g}"
    except ValueError:
        return value
