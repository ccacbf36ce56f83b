"""Make the jobs of a sweep from Hydra's sweep grammar and name them."""

from __future__ import annotations

import hashlib
import itertools
import math
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override, QuotedString, RangeSweep, Sweep, ValueType
from hydra.errors import HydraException

from rlhf_cli.analysis.comparison.logged_run import short_key
from rlhf_cli.config.compose import quote_paths
from rlhf_cli.config.composing_errors import no_such_group, reason_of
from rlhf_cli.config.conf_folders import groups
from rlhf_cli.errors import ConfigError, UserError, raise_any

_MOST_OF_A_VALUE = 32
_MOST_OF_A_NAME = 120
"""Folder names may have 255 bytes; names longer than this are unreadable."""
_HASH = 6
_UNSAFE = re.compile(r"[^A-Za-z0-9._+-]+")
_MOST_RUNS = 5000


def names_of(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """Return a unique folder name for each job: its values, under the shortest unambiguous suffixes of their keys.

    Unsafe characters become `-`. A name ends in a hash if a value is long, or equal to another one after that.
    """
    short = short_keys(list(rows[0]) if rows else [])
    plain = [{key: _plain(value) for key, value in row.items()} for row in rows]
    counts = Counter(tuple(row.items()) for row in plain)
    names = []
    for row, texts in zip(rows, plain, strict=True):
        is_cut = {key for key, text in texts.items() if len(text) > _MOST_OF_A_VALUE}
        # The end of a path is its most telling part.
        cells = {key: text[-_MOST_OF_A_VALUE:].lstrip("-.") if key in is_cut else text for key, text in texts.items()}
        name = ",".join(f"{short[key]}={text}" for key, text in cells.items())
        if is_cut or len(name) > _MOST_OF_A_NAME or counts[tuple(texts.items())] > 1:
            name = f"{name[:_MOST_OF_A_NAME]}~{hashlib.sha256(repr(row).encode()).hexdigest()[:_HASH]}"
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


@dataclass(frozen=True)
class SweepGrid:
    """The swept axes and the jobs. The last axis varies fastest."""

    axes: tuple[SweptKey, ...]
    jobs: tuple[SweepJob, ...]


def grid_of(typed: list[str]) -> SweepGrid:
    """Return the grid of the overrides in `typed`. Raise ConfigError, or Problems, with all that is wrong with it."""
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
    jobs = (SweepJob(*job) for job in zip(names_of(rows), rows, words, strict=True))
    return SweepGrid(tuple(axes.values()), tuple(jobs))


def _wrong(
    what: str, got: str | None, expected: str | None = None, hint: str | None = None, advice: str | None = None
) -> ConfigError:
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
            hint = shlex.quote("".join([text, *takewhile(lambda word: "=" not in word, after)]).rstrip(","))
        raise _wrong(
            f"{key} has no values" if is_empty else "these values cannot be read",
            text if is_empty else f"{text}\n{said}",
            "values separated by commas, 'choice(a,b)', 'range(0,5)', 'glob(toy_*)', lists: '[1,2],[3]'",
            hint,
            "quote a value that contains a comma, a bracket or =: \"key='a, b',c\"",
        ) from None


def _axis(override: Override) -> SweptKey:
    key, value = override.get_key_element(), override.value()
    shown = key.lstrip("+")
    if override.value_type == ValueType.INTERVAL_SWEEP:
        assert isinstance(value, Sweep)
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
