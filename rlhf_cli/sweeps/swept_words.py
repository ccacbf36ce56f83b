"""Read the words of a sweep, in Hydra's sweep grammar: the jobs of a grid and their names, or the space of a search."""

from __future__ import annotations

import hashlib
import itertools
import math
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Glob, IntervalSweep, Override, QuotedString, RangeSweep, Sweep
from hydra.errors import HydraException

from rlhf_cli.analysis.comparison.logged_run import is_seed, short_key
from rlhf_cli.config.compose import quote_paths
from rlhf_cli.config.composing_errors import LETTERS_OF_A_KEY, no_such_group, reason_of
from rlhf_cli.config.conf_folders import groups
from rlhf_cli.config.origins import Origins
from rlhf_cli.config.rules.metric_rules import MOVES_THE_TOTAL, moving_total
from rlhf_cli.config.schema.run_sections import Sweep as SweepSection
from rlhf_cli.errors import ConfigError, RunError, UserError, raise_any
from rlhf_cli.plan.prepare import prepare
from rlhf_cli.runs.metrics_file import TOTAL
from rlhf_cli.tables.metrics import logged_name
from rlhf_cli.text.json_values import JsonTree
from rlhf_cli.text.suggest import nearest

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

_MOST_OF_A_VALUE = 32
_MOST_OF_A_NAME = 120
"""Folder names may have 255 bytes; names longer than this are unreadable."""
_HASH = 6
_UNSAFE = re.compile(r"[^A-Za-z0-9._+-]+")
_MOST_RUNS = 5000


def names_of(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """Return a unique folder name per job: values under their keys' shortest suffixes; a hash if cut or not unique.

    Keys for which there is no room are left out whole, because a cut value looks like another one.
    """
    short = short_keys(list(rows[0]) if rows else [])
    plain = [{key: _plain(value) for key, value in row.items()} for row in rows]
    counts = Counter(tuple(row.items()) for row in plain)
    names = []
    for row, texts in zip(rows, plain, strict=True):
        is_cut = {key for key, text in texts.items() if len(text) > _MOST_OF_A_VALUE}
        # The end of a path is its most telling part.
        cells = {key: text[-_MOST_OF_A_VALUE:].lstrip("-.") if key in is_cut else text for key, text in texts.items()}
        parts, kept = [f"{short[key]}={text}" for key, text in cells.items()], list[str]()
        for part in parts:
            kept += [part] if len(",".join([*kept, part])) <= _MOST_OF_A_NAME else []
        name = ",".join(kept or parts[:1])[:_MOST_OF_A_NAME]
        if is_cut or len(kept) < len(parts) or counts[tuple(texts.items())] > 1:
            more = f",and-{len(parts) - len(kept)}-more" if 0 < len(kept) < len(parts) else ""
            name = f"{name}{more}~{hashlib.sha256(repr(row).encode()).hexdigest()[:_HASH]}"
        names.append(name)
    return names


def short_keys(keys: Sequence[str]) -> dict[str, str]:
    """Return key -> its shortest unique suffix: `weight` or `brevity.weight`; `x` of `reward@rewards.x`."""
    ends = {key: _UNSAFE.sub("-", key.rpartition("@")[2]) for key in keys}
    texts = list(ends.values())
    return {key: short_key(end, texts) if texts.count(end) == 1 else _UNSAFE.sub("-", key) for key, end in ends.items()}


def _plain(value: str) -> str:
    """Return a value without unsafe characters, and a number as a user would type it: 1e-5, not Python's 1e-05."""
    text = re.sub(r"(\d)e([+-])0+(\d)", r"\1e\2\3", value)
    try:
        float(value)
    except ValueError:
        text = _UNSAFE.sub("-", text).strip("-")
    return text or "empty"


@dataclass(frozen=True)
class SweptKey:
    """A swept key as typed, without prefix signs; the overrides that set each value, and the values for display."""

    key: str
    words: tuple[str, ...]
    texts: tuple[str, ...]


@dataclass(frozen=True)
class SweepJob:
    """One job of a sweep: its name, its values by key, and the overrides to run it alone."""

    name: str
    values: Mapping[str, str]
    words: tuple[str, ...]


def grid_of(typed: list[str]) -> tuple[list[SweptKey], list[SweepJob]]:
    """Return the swept axes and the jobs, the last axis fastest. Raise ConfigError, or Problems, with all mistakes."""
    problems: list[UserError] = []
    parsed: list[tuple[str, Override | None]] = []
    axes: dict[int, SweptKey] = {}
    for place, text in enumerate(map(quote_paths, typed)):
        try:
            override = _parsed(text, typed[place + 1 :])
            parsed.append((text, override))
            if override is not None and override.is_sweep_override():
                axes[place] = _axis(override)
        except UserError as error:
            problems.append(error)
    problems += typed_again([override for _, override in parsed if override is not None])
    if not problems and not axes:
        got, expected = " ".join(typed) or "no values", "a key with several values: seed=1,2,3 or 'seed=range(0,5)'"
        hint, advice = next(filter(None, map(_meant, typed)), None), "leave out -m for one run"
        problems.append(_wrong("no key has several values", got, expected, hint, advice))
    raise_any(problems)
    _refuse_too_many(math.prod(len(axis.words) for axis in axes.values()), " ".join(typed))
    choices = [
        list(enumerate(axes[place].words)) if place in axes else [(None, text)]
        for place, (text, _) in enumerate(parsed)
    ]
    rows, words = [], []
    for combination in itertools.product(*choices):
        indices = [index for index, _ in combination if index is not None]
        rows.append({axis.key: axis.texts[index] for axis, index in zip(axes.values(), indices, strict=True)})
        words.append(tuple(word for _, word in combination))
    return [*axes.values()], [SweepJob(*job) for job in zip(names_of(rows), rows, words, strict=True)]


def _wrong(what: str, got: object, expected: str, hint: str | None = None, advice: str | None = None) -> ConfigError:
    return ConfigError(what, where="command line", got=got, expected=expected, hint=hint, advice=advice)


def _refuse_too_many(runs: float, got: str) -> None:
    """Raise ConfigError for a sweep whose runs alone would take hours to check."""
    if runs > _MOST_RUNS:
        expected = f"at most {_MOST_RUNS} runs; sweep=weights tries some values of an interval"
        raise _wrong(f"a sweep of {runs:.0f} runs is too large", got, expected, advice="name fewer values")


def _meant(word: str) -> str | None:
    """Return the swept values that a list or an interval of other tools stands for: `[0,1]`, `0-2`, `0..2`, `0:2`."""
    key, _, value = word.partition("=")
    if ends := re.fullmatch(r"(\d+)(?:-|\.\.|:)(\d+)", value):
        return f"'{key}=range({ends[1]},{int(ends[2]) + 1})'"
    listed = re.fullmatch(r"\[([^][{}]+,[^][{}]+)\]", value)
    return shlex.quote(f"{key}={listed[1].replace(' ', '')}") if listed else None


def _parsed(text: str, after: list[str]) -> Override | None:
    """Return Hydra's parsed override. Return None for a deletion (`~`) or another word, which composing reports."""
    key, equals, value = text.lstrip("+").partition("=")
    if text.startswith("~") or not equals:
        return None
    if re.match(r"hydra[./]", key):
        raise no_such_group(key, text)
    if key in ("run.name", "run.root") and "," in value:
        what = f"{key} names the folder of the whole sweep and cannot have several values"
        expected = "one value; the jobs are named after the swept values"
        raise _wrong(what, text, expected, f"{key}={value.partition(',')[0]}")
    try:
        return OverridesParser.create().parse_override(text)
    except HydraException as error:
        said, hint = reason_of(error), None
        is_empty = "empty choice" in said
        if value.strip(",") and value.endswith(","):  # `seed=0, 1, 2`, which the shell splits
            hint = shlex.quote("".join([text, *itertools.takewhile(lambda word: "=" not in word, after)]).rstrip(","))
        what, got = f"{key} has no values" if is_empty else "these values cannot be read", f"{text}\n{said}"
        expected = "values separated by commas, 'choice(a,b)', 'range(0,5)', 'glob(toy_*)', lists: '[1,2],[3]'"
        advice = "quote a value that contains a comma, a bracket or =: \"key='a, b',c\""
        if not key.isascii():
            raise _wrong(what, got, LETTERS_OF_A_KEY, hint) from None
        raise _wrong(what, text if is_empty else got, expected, hint, advice) from None


def _axis(override: Override) -> SweptKey:
    key, value = override.get_key_element(), override.value()
    shown = key.lstrip("+")
    if isinstance(value, IntervalSweep):
        hint = f"'{shown}=range(START,STOP,STEP)', or {shown}=VALUE,VALUE, or sweep=weights"
        raise _wrong("an interval needs a search, not a grid", override.input_line, "a finite list of values", hint)
    if isinstance(value, RangeSweep) and value.start is not None and value.stop is not None and value.step:
        _refuse_too_many((value.stop - value.start) / value.step, str(override.input_line))
    elements = _options(override, value) if isinstance(value, Glob) else _elements(override)
    if not elements:
        expected = "at least one value; a range ends before its stop: range(0,5) is 0,1,2,3,4"
        raise _wrong(f"{shown} has no values", override.input_line, expected)
    if len({word for _, word in elements}) < len(elements):
        raise _wrong(f"{shown} has the same value twice", override.input_line, "each value once")
    texts = tuple(element.text if isinstance(element, QuotedString) else word for element, word in elements)
    return SweptKey(shown, tuple(f"{key}={word}" for _, word in elements), texts)


def _elements(override: Override) -> list[tuple[object, str]]:
    """Return (parsed value, its typed form) of every value, in shuffled order if that was requested."""
    elements = list(override.sweep_iterator())
    if any(isinstance(element, Sweep | Glob) for element in elements):
        expected = "a range or choice alone, or all values separated by commas"
        raise _wrong("a range or choice cannot stand among other values", override.input_line, expected)
    # `${oc.env:NAME}` stays as it is, because escaping would break the reference.
    is_reference = [isinstance(element, str) and "${" in element for element in elements]
    return [
        (element, str(element) if as_is else Override._get_value_element_as_str(element))
        for element, as_is in zip(elements, is_reference, strict=True)
    ]


def _options(override: Override, pattern: Glob) -> list[tuple[object, str]]:
    group = override.key_or_group
    options = groups().get(group, {})
    chosen = pattern.filter(sorted(options))
    if not chosen:
        what = f"no {group} matches this pattern" if options else f"{group} is not a group, so glob() finds nothing"
        expected = "a pattern of " + ", ".join(options) if options else "one of " + ", ".join(groups())
        raise _wrong(what, override.input_line, expected, f"rlhf list {group}" if options else "rlhf list")
    return [(option, option) for option in chosen]


def typed_again(parsed: list[Override]) -> Iterator[ConfigError]:
    """Yield an error for each key that has several values and is typed twice."""
    by_key: dict[str, list[Override]] = {}
    for override in parsed:
        by_key.setdefault(override.get_key_element().lstrip("+"), []).append(override)
    for key, several in by_key.items():
        if len(several) > 1 and any(override.is_sweep_override() for override in several):
            got = "\n".join(override.input_line or "" for override in several)
            yield _wrong(f"{key} has several values and is typed twice", got, "one word with all its values")


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
        override = _parse(f"{keys[0]}={text}")
        if override is None or not override.is_sweep_override():
            what = f"{key} has only one value, so there is nothing to search"
            what = what if override is not None else f"the values of {key} cannot be read"
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

    sweep: SweepSection
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
    """Return the search, None for a grid. Raise ConfigError if it is empty, holds the seed or changes its objective."""
    is_typed = any(_is_of_section(word) for word in typed)
    fixed, swept = split_words(typed)
    words: list[str] = []
    try:
        with suppress(UserError):  # the first job of a grid, else the first end of each interval
            words = [] if is_typed else [*grid_of(typed)[1][0].words]
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
    return re.match(rf"\+*{SECTION}([.=]|$)", word) is not None


def few_digits(value: str) -> str:
    """Return a number with few digits, to fit in a name. Trial numbers keep names unique."""
    try:
        return f"{float(value):.3g}"
    except ValueError:
        return value
