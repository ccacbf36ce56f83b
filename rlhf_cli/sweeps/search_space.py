"""Parse a search space: intervals, ranges and choices in Hydra's syntax, typed or in `sweep.space`."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, IntervalSweep, Override, RangeSweep
from hydra.errors import HydraException

from rlhf_cli.errors import ConfigError, Prose

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

_EXPECTED = "interval(0, 1), tag(log, interval(1e-6, 1e-4)), int(interval(1, 8)), range(1, 9) or choice(a, b)"
_SEEDS = ("seed",)


@dataclass(frozen=True)
class Numbers:
    """All numbers from `low` to `high`, both included. `is_log` samples on a logarithmic scale."""

    low: float
    high: float
    is_log: bool = False
    is_whole: bool = False

    def corners(self) -> list[str]:
        """Return the minimum and the maximum, as override values."""
        return [self.word(self.low), self.word(self.high)]

    def word(self, value: float) -> str:
        """Return a value as it is typed."""
        return str(round(value)) if self.is_whole else repr(float(value))


@dataclass(frozen=True)
class Options:
    """One of several values, as they are typed."""

    values: tuple[str, ...]

    def corners(self) -> list[str]:
        """Return every value."""
        return list(self.values)


Space = dict[str, Numbers | Options]
"""Key or config group -> its possible values."""


def split_words(words: Iterable[str]) -> tuple[list[str], Space]:
    """Return the words that apply to every trial, and the space of the others."""
    fixed: list[str] = []
    space: Space = {}
    for word in words:
        override = _parse(word)
        if override is None or not override.is_sweep_override():
            fixed.append(word)
            continue
        space[word.partition("=")[0].lstrip("+")] = _may_be(override, word)
    return fixed, space


def from_section(section: Mapping[str, str], rewards: Iterable[str], typed: Iterable[str]) -> Space:
    """Return the space in `sweep.space`, without the keys that were `typed`.

    A `*` in a key matches each of the `rewards`. Raise ConfigError for a pattern that matches none.
    """
    typed, names = set(typed), list(rewards)
    space: Space = {}
    for key, text in section.items():
        keys = [f"rewards.{name}.{key.split('.', 2)[2]}" for name in names if _stands_for(key, name)]
        if "*" not in key:
            keys = [key]
        if not keys:
            raise ConfigError(
                f"{key} stands for no reward",
                where=f"sweep.space.{key}",
                expected=f"rewards.NAME.weight, of {', '.join(names)}" if names else "an experiment with rewards",
            )
        word = f"{keys[0]}={text}"
        override = _parse(word)
        if override is None or not override.is_sweep_override():
            raise ConfigError(
                f"{key} cannot be searched: it says one value", where=f"sweep.space.{key}", got=text, expected=_EXPECTED
            )
        may_be = _may_be(override, word)
        space |= {one: may_be for one in keys if one not in typed}
    return space


def refuse_seeds(space: Space) -> None:
    """Raise ConfigError if the space contains the seed: the best seed is luck, not a setting."""
    for key in _SEEDS:
        if key in space:
            raise ConfigError(
                "the best seed is luck, and no setting to search for",
                where="command line",
                got=f"{key} in the space of the search",
                hint=Prose("rlhf train -m with the best settings and seed=1,2,3, a grid, when the search has ended"),
            )


def distribution(may_be: Numbers | Options) -> BaseDistribution:
    """Return Optuna's distribution."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(may_be, Options):
        return CategoricalDistribution(may_be.values)
    if may_be.is_whole:
        return IntDistribution(round(may_be.low), round(may_be.high), log=may_be.is_log)
    return FloatDistribution(may_be.low, may_be.high, log=may_be.is_log)


def word_of(key: str, may_be: Numbers | Options, value: object) -> str:
    """Return a value that Optuna proposes as the override a user would type."""
    return f"{key}={value}" if isinstance(may_be, Options) else f"{key}={may_be.word(float(str(value)))}"


def _stands_for(pattern: str, reward: str) -> bool:
    parts = pattern.split(".", 2)
    return len(parts) == 3 and parts[0] == "rewards" and fnmatch.fnmatchcase(reward, parts[1])


def _parse(word: str) -> Override | None:
    try:
        return OverridesParser.create().parse_override(word)
    except HydraException:
        return None  # composing reports the error


def _may_be(override: Override, word: str) -> Numbers | Options:
    sweep = override.value()
    if isinstance(sweep, IntervalSweep):
        assert sweep.start is not None
        assert sweep.end is not None
        is_whole = "int" in sweep.tags or (isinstance(sweep.start, int) and isinstance(sweep.end, int))
        return _numbers(float(sweep.start), float(sweep.end), "log" in sweep.tags, is_whole, word)
    if isinstance(sweep, RangeSweep) and sweep.step == 1 and isinstance(sweep.start, int):
        assert sweep.stop is not None
        return _numbers(float(sweep.start), float(sweep.stop) - 1, "log" in sweep.tags, True, word)
    if isinstance(sweep, ChoiceSweep | RangeSweep):
        values = tuple(dict.fromkeys(str(value) for value in override.sweep_string_iterator()))
        if len(values) > 1:
            return Options(values)
    raise ConfigError("there is nothing to search in this", where="command line", got=word, expected=_EXPECTED)


def _numbers(low: float, high: float, is_log: bool, is_whole: bool, word: str) -> Numbers:
    if not low < high or (is_log and low <= 0):
        raise ConfigError(
            "this interval holds nothing to choose from",
            where="command line",
            got=word,
            expected="a smaller number, then a larger one" + ("; above 0, for logarithms" if is_log else ""),
        )
    return Numbers(low, high, is_log, is_whole)
