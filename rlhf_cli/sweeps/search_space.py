"""Read and check the space of a search and its objectives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, IntervalSweep, Override, RangeSweep
from hydra.errors import HydraException

from rlhf_cli.analysis.comparison.logged_run import is_seed
from rlhf_cli.config.origins import Origins
from rlhf_cli.config.rules.metric_rules import MOVES_THE_TOTAL, moving_total
from rlhf_cli.config.schema.launch_sections import Sweep
from rlhf_cli.errors import ConfigError, RunError, UserError, raise_any
from rlhf_cli.plan.prepare import prepare
from rlhf_cli.runs.metrics_file import TOTAL
from rlhf_cli.sweeps.sweep_grid import SweepJob, grid_of, names_of, typed_again
from rlhf_cli.tables.metrics import logged_name
from rlhf_cli.text.json_values import JsonTree
from rlhf_cli.text.suggest import nearest

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

_EXPECTED = "interval(0, 1), tag(log, interval(1e-6, 1e-4)), int(interval(1, 8)), range(1, 9) or choice(a, b)"


Space = dict[str, "BaseDistribution"]
"""Key or config group -> its possible values."""


def split_words(words: Iterable[str]) -> tuple[list[str], dict[str, Override]]:
    """Return the words that apply to every trial, and the others as key -> override with several values."""
    fixed: list[str] = []
    swept: dict[str, Override] = {}
    for word in words:
        override = _parse(word)
        if override is None or not override.is_sweep_override():
            fixed.append(word)
        else:
            swept[word.partition("=")[0].lstrip("+")] = override
    return fixed, swept


def from_section(section: Mapping[str, str], rewards: Iterable[str], typed: Iterable[str]) -> Space:
    """Return `sweep.space` without `typed` keys; a `*` matches each reward. Raise ConfigError if it matches none."""
    typed, names = set(typed), list(rewards)
    space: Space = {}
    for key, text in section.items():
        keys = [key]
        if "*" in key:
            parts = key.split(".", 2)
            is_pattern = len(parts) == 3 and parts[0] == "rewards"
            keys = [f"rewards.{name}.{parts[2]}" for name in names if is_pattern and fnmatchcase(name, parts[1])]
        if not keys:
            expected = f"rewards.NAME.weight, of {', '.join(names)}" if names else "an experiment with rewards"
            raise ConfigError(f"{key} matches no reward", where=f"sweep.space.{key}", expected=expected)
        word = f"{keys[0]}={text}"
        override = _parse(word)
        if override is None or not override.is_sweep_override():
            what = f"{key} has only one value, so there is nothing to search"
            raise ConfigError(what, where=f"sweep.space.{key}", got=text, expected=_EXPECTED)
        space |= dict.fromkeys((each for each in keys if each not in typed), distribution_of(override))
    return space


def _parse(word: str) -> Override | None:
    try:
        return OverridesParser.create().parse_override(word)
    except HydraException:
        return None  # composing reports the error


def distribution_of(override: Override) -> BaseDistribution:
    """Return Optuna's distribution. Raise ConfigError if it has fewer than two values, or Optuna is missing."""
    try:
        from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
    except ImportError:
        what, hint = "a search needs Optuna, which is not installed", "pip install 'rlhf-cli[search]'"
        raise ConfigError(what, where="sweep", hint=hint) from None
    sweep, word = override.value(), override.input_line
    if isinstance(sweep, IntervalSweep) or (
        isinstance(sweep, RangeSweep) and sweep.step == 1 and isinstance(sweep.start, int)
    ):
        low, high = sweep.start or 0, (sweep.end if isinstance(sweep, IntervalSweep) else (sweep.stop or 0) - 1) or 0
        is_log, is_whole = "log" in sweep.tags, "int" in sweep.tags or (isinstance(low, int) and isinstance(high, int))
        with suppress(ValueError):  # Optuna's, of an empty interval
            numbers = (
                IntDistribution(round(low), round(high), log=is_log)
                if is_whole
                else FloatDistribution(low, high, log=is_log)
            )
            if not numbers.single():
                return numbers
        expected = "a smaller number, then a larger one" + ("; above 0, for logarithms" if is_log else "")
        raise ConfigError("this interval is empty", where="command line", got=word, expected=expected)
    if isinstance(sweep, ChoiceSweep | RangeSweep):
        values = tuple(dict.fromkeys(str(value) for value in override.sweep_string_iterator()))
        if len(values) > 1:
            return CategoricalDistribution(values)
    raise ConfigError("there is nothing to search", where="command line", got=word, expected=_EXPECTED)


def ends_of(distribution: BaseDistribution) -> list[str]:
    """Return the least and the largest number, or every option, as override values."""
    has = distribution._asdict()
    return [str(value) for value in has.get("choices", (has.get("low"), has.get("high")))]


def in_words(distribution: BaseDistribution) -> str:
    """Return `0 to 1, logarithmic`, `1 to 8 whole numbers` or `none, exclude`."""
    has = distribution._asdict()
    if "choices" in has:
        return ", ".join(has["choices"])
    kind = " whole numbers" if isinstance(has["low"], int) else ""
    return f"{has['low']:g} to {has['high']:g}{kind}{', logarithmic' * has['log']}"


@dataclass(frozen=True)
class Objective:
    """A metric that a search maximises or minimises."""

    metric: str
    less_is_better: bool

    def __str__(self) -> str:
        return f"{'-' if self.less_is_better else ''}{self.metric}"


def read_objective(text: str, rewards: Iterable[str] = ()) -> Objective:
    """Return the objective of `rewards/correct/mean` or `-kl`; the name of a reward means its raw mean."""
    return Objective(logged_name(text.removeprefix("-").strip(), rewards), text.startswith("-"))


def never_logged(objective: Objective, logged: Iterable[str], *, where: str) -> RunError:
    """Return the error for an objective that a finished run never logged, with the nearest logged name."""
    close, sign = nearest(objective.metric, sorted(logged)), "-" if objective.less_is_better else ""
    what, got = f"no run of this search logs {objective.metric}", f"sweep.objective={objective}"
    hint = f"sweep.objective={sign}{close}" if close else "docs/reference/metrics.md"
    return RunError(what, where=where, got=got, expected="a metric that is logged", hint=hint)


SECTION = "sweep"


@dataclass(frozen=True)
class SearchPlan:
    """A search: its objectives, its space, the words for every trial, `launch.must_save_by` and `launch.grace_s`."""

    sweep: Sweep
    objectives: tuple[Objective, ...]
    space: Space
    fixed: tuple[str, ...]
    seed: int
    must_save_by: str | None = None
    grace_s: float = 0.0

    def job(self, number: int, params: Mapping[str, object]) -> SweepJob:
        """Return the job of a trial, named by its number and its settings as far as they fit."""
        values = {key: str(value) for key, value in params.items()}
        (name,) = names_of([{"trial": str(number), **{key: few_digits(value) for key, value in values.items()}}])
        return SweepJob(name, values, (*self.fixed, *words_of(values)))

    def corners(self) -> list[SweepJob]:
        """Return jobs that together set every key to its ends, or to each of its options."""
        ends = {key: ends_of(distribution) for key, distribution in self.space.items()}
        first = {key: values[0] for key, values in ends.items()}
        rows = [first, *({**first, key: value} for key, values in ends.items() for value in values[1:])]
        named = zip(names_of(rows), rows, strict=True)
        return [SweepJob(name, row, (*self.fixed, *words_of(row))) for name, row in named]


def words_of(values: Mapping[str, object]) -> tuple[str, ...]:
    """Return values by key, such as those that Optuna proposes, as overrides."""
    return tuple(f"{key}={value}" for key, value in values.items())


def search_plan(typed: list[str]) -> SearchPlan | None:
    """Return the search that the words describe, None for a grid. Raise ConfigError for a space that is refused."""
    is_typed = any(_is_of_section(word) for word in typed)
    fixed, swept = split_words(typed)
    words: list[str] = []
    try:
        with suppress(UserError):  # the first job of a grid, else the first end of each interval
            words = [] if is_typed else [*grid_of(typed).jobs[0].words]
        words = words or [*fixed, *(f"{key}={ends_of(distribution_of(one))[0]}" for key, one in swept.items())]
        experiment = prepare(words).experiment
    except UserError:
        if is_typed:
            raise
        return None  # the grid reports which of its jobs are wrong
    sweep = experiment.sweep
    if sweep is None or (not is_typed and swept.keys() == {"seed"}):  # the repetition of an experiment's own search
        return None
    raise_any(typed_again([override for override in map(_parse, typed) if override is not None]))
    typed_keys = [word.partition("=")[0].lstrip("+") for word in fixed]
    space = from_section(sweep.space, experiment.rewards, typed_keys)
    space |= {key: distribution_of(override) for key, override in swept.items()}
    objectives = tuple(read_objective(text, experiment.rewards) for text in sweep.objective)
    _refuse(space, objectives, list(experiment.rewards))
    kept = tuple(word for word in fixed if not _is_of_section(word))
    launch = experiment.launch
    return SearchPlan(sweep, objectives, space, kept, experiment.seed, launch.must_save_by, launch.grace_s)


def without_section(tree: JsonTree, origins: Origins) -> None:
    """Remove the section from a trial's configuration, in place, because a trial is not itself a search."""
    tree.pop(SECTION, None)


def _refuse(space: Space, objectives: Sequence[Objective], rewards: list[str]) -> None:
    if not space:
        what, expected = "the search has no key to vary", "keys with several values"
        hint = "'rewards.NAME.weight=interval(0,2)', or sweep=weights"
        raise ConfigError(what, where="sweep.space", expected=expected, hint=hint)
    if seeds := [key for key in space if is_seed(key)]:
        what, got = "the seed cannot be searched: the best seed is luck", f"{seeds[0]} in the space of the search"
        advice = "after the search, run the best settings with several seeds: rlhf train -m ... seed=1,2,3"
        raise ConfigError(what, where="command line", got=got, advice=advice)
    moving = [key for key in space if MOVES_THE_TOTAL.match(key)]
    for objective in objectives:
        metric = objective.metric.removeprefix("eval_")
        if moving and (metric == TOTAL or metric.endswith("/total")):
            raise moving_total(str(objective), moving, rewards, where="sweep.objective")


def _is_of_section(word: str) -> bool:
    key = word.partition("=")[0].lstrip("+")
    return key == SECTION or key.startswith(f"{SECTION}.")


def few_digits(value: str) -> str:
    """Return a number with few digits, to fit in a name. Trial numbers keep names unique."""
    try:
        return f"{float(value):.3g}"
    except ValueError:
        return value
