"""Find the differences between runs, and name the runs by them: `weight=0.5,seed=2`."""

from __future__ import annotations

import os
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from rlhf_cli.tables.resume_keys import row_of

_SEEDS = ("seed", "data_seed")
_CHANGES_NOTHING = (None, "no best is chosen")
_MOST_AXES = 4
_LONGEST_NAME = 60
_DIGITS = (6, 12)
"""Show 6 digits of a fraction if they distinguish the runs, else 12: a search proposes 0.8473095986776095."""
_ABSENT = object()

STEPS, BATCH, DATA, MODEL = "steps", "batch", "data", "model"
_CONDITIONS = {
    "trainer.args.max_steps": STEPS,
    "trainer.args.num_train_epochs": STEPS,
    "trainer.args.per_device_train_batch_size": BATCH,
    "trainer.args.gradient_accumulation_steps": BATCH,
    "launch.processes": BATCH,
    "launch.nodes": BATCH,
    "data": DATA,
    "model": MODEL,
}
"""Map a key or a section -> the training condition that it sets."""


class Configured(Protocol):
    """Anything with a configuration; a key that only one of two runs has counts as a difference."""

    @property
    def settings(self) -> Mapping[str, object]:
        """Return dotted key -> value."""

    @property
    def choices(self) -> Mapping[str, str]:
        """Return config group -> selected option."""

    @property
    def swept(self) -> Sequence[str]:
        """Return the keys that its sweep varied."""

    @property
    def place(self) -> str:
        """Return the path of the run."""


@dataclass(frozen=True)
class DifferingKey:
    """A difference between runs: a key, and all keys that change together with it.

    `short` is the shortest unambiguous suffix of the key; `texts` has one value per run, in their order. `others` maps
    each of these keys that is in the configuration, including its own, -> its texts.
    """

    key: str
    short: str
    others: Mapping[str, tuple[str, ...]]
    texts: tuple[str, ...]
    is_seed: bool

    def of(self, place: int) -> str:
        """Return `weight=0.5` for the run at this index."""
        return f"{self.short}={self.texts[place]}"


def is_seed(key: str) -> bool:
    """Return whether a key only changes the random numbers: `seed`, `data.seed`, `model.build.seed`."""
    return key.rpartition(".")[2] in _SEEDS


def condition_of(key: str) -> str | None:
    """Return the training condition that a dotted key sets: STEPS, BATCH, DATA or MODEL; None for any other key."""
    return _CONDITIONS.get(key) or _CONDITIONS.get(key.partition(".")[0])


def differences(runs: Sequence[Configured]) -> list[str]:
    """Return the keys whose value differs between runs, in the order of the configuration.

    Ignore keys that do not affect training (`run`, `track`, saving and logging).
    """
    all_settings = [run.settings for run in runs]
    keys: dict[str, None] = {}
    for settings in all_settings:
        keys.update(dict.fromkeys(settings))
    different = []
    for key in keys:
        values = [settings.get(key, _ABSENT) for settings in all_settings]
        if values.count(values[0]) != len(values) and not _is_outside(key):
            different.append(key)
    return different


def axes(runs: Sequence[Configured]) -> list[DifferingKey]:
    """Return the differences, grouping keys that change together, seeds last.

    A group is named after its swept key, else after a selected config group (`truncation`, `exp`) that stands for
    several keys, else after the first key that is not a training condition. Swept keys stay separate: in a search every
    trial has another value of each, although none of them implies another.
    """
    classes: dict[tuple[tuple[int, ...], bool], list[str]] = {}
    for key in differences(runs):
        values = [repr(run.settings.get(key, _ABSENT)) for run in runs]
        classes.setdefault((_pattern(values), is_seed(key)), []).append(key)
    choices = {key: None for run in runs for key in run.choices}
    swept = {key: None for run in runs for key in run.swept}
    heads = {}
    for (pattern, seeds), keys in classes.items():
        chosen = [one for one in choices if _pattern([run.choices.get(one, "") for run in runs]) == pattern]
        varied = [key for key in swept if key in keys or key in chosen]
        own = min(keys, key=lambda key: condition_of(key) is not None)
        head = varied[0] if varied else chosen[0] if chosen and len(keys) > 1 and not seeds else own
        apart = [key for key in varied[1:] if key in keys]
        heads[head] = [key for key in keys if key not in apart]
        heads.update({key: [key] for key in apart})
    found = []
    for head, keys in heads.items():
        texts = {key: _texts(runs, key) for key in [head, *keys]}
        others = {key: texts[key] for key in keys}
        found.append(DifferingKey(head, short_key(head, list(heads)), others, texts[head], is_seed(head)))
    return sorted(found, key=lambda axis: axis.is_seed)


def names_of(runs: Sequence[Configured]) -> list[str]:
    """Return a name for each run by its differences, or by its folder if there are none or the name is too long.

    Runs that differ only in their folder get the folder appended.
    """
    found = axes(runs) if len(runs) > 1 else []
    names = [",".join(axis.of(place) for axis in found) for place in range(len(runs))]
    is_short = (
        sum(not axis.is_seed for axis in found) <= _MOST_AXES and max(map(len, names), default=0) <= _LONGEST_NAME
    )
    if not found or not is_short:
        return _by_folder(runs)
    folders = _by_folder(runs)
    return [name if names.count(name) == 1 else f"{name} ({folders[place]})" for place, name in enumerate(names)]


def short_key(key: str, keys: Sequence[str]) -> str:
    """Return the shortest suffix of a dotted key that is not a suffix of another one."""
    parts = key.split(".")
    for length in range(1, len(parts)):
        short = ".".join(parts[-length:])
        if not any(other != key and (other == short or other.endswith(f".{short}")) for other in keys):
            return short
    return key


def value_text(value: object, digits: int = 12) -> str:
    """Return a value as one would type it: 0.5, none, true; of a path the last part; of a fraction `digits` digits."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return f"{value:.{12 if float(value).is_integer() else digits}g}"
    if isinstance(value, list | tuple):
        return f"[{','.join(value_text(one, digits) for one in value)}]"
    text = str(value)
    return os.path.basename(text.rstrip("/")) if os.path.isabs(text) else text


def _texts(runs: Sequence[Configured], head: str) -> tuple[str, ...]:
    """Return the value of a key, or the option of a config group, per run; in full if short texts are ambiguous."""
    if not any(head in run.settings for run in runs):
        return tuple(run.choices.get(head, "-") for run in runs)
    values = [run.settings.get(head, _ABSENT) for run in runs]
    different = len(set(map(repr, values)))
    for digits in _DIGITS:
        texts = ["-" if value is _ABSENT else value_text(value, digits) for value in values]
        if len(set(texts)) == different:
            return tuple(texts)
    return tuple("-" if value is _ABSENT else str(value) for value in values)


def _pattern(values: Sequence[Hashable]) -> tuple[int, ...]:
    """Return for each run the index of the first run with the same value."""
    first: dict[Hashable, int] = {}
    return tuple(first.setdefault(value, place) for place, value in enumerate(values))


def _is_outside(key: str) -> bool:
    if key == "sweep" or key.startswith("sweep."):
        return True
    row = row_of(key)
    return row.effect == "taken" and row.only_if in _CHANGES_NOTHING


def _by_folder(runs: Sequence[Configured]) -> list[str]:
    """Return the part of each run's path that differs from the others."""
    places = [run.place for run in runs]
    if len(places) < 2:
        return [os.path.join(*place.split(os.sep)[-2:]) if os.sep in place else place for place in places]
    common = os.path.commonpath(places) if len({os.path.isabs(place) for place in places}) == 1 else ""
    return [os.path.relpath(place, common) if common else place for place in places]
