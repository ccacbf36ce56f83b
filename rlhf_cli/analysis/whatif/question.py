"""Hold a question about a run, and its alternatives."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.errors import ConfigError
from rlhf_cli.text.json_values import JsonValue


@dataclass(frozen=True)
class KeyChange:
    """A key with its old and new value; None means no value."""

    key: str
    old: JsonValue
    new: JsonValue


@dataclass(frozen=True)
class WhatIfQuestion:
    """The old and the new experiment; `words` are those typed."""

    words: tuple[str, ...]
    old: Experiment
    new: Experiment
    changes: tuple[KeyChange, ...]


def gate_in_words(gate: Mapping[str, object]) -> str:
    """Return `correct >= 1 else zero` for a configured gate."""
    signs = {"at_least": ">=", "at_most": "<=", "equals": "=", "between": "in"}
    bounds = [f"{sign} {_plain(gate[key])}" for key, sign in signs.items() if gate.get(key) is not None]
    return f"{gate['by']} {' and '.join(bounds)} else {_plain(gate['otherwise'])}"


def _plain(value: object) -> str:
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_plain, value))}]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def alternatives(words: list[str]) -> list[list[str]]:
    """Return every combination of the words' values, with the syntax of `rlhf train -m`.

    Return one list if no word has several values. Raise ConfigError for more than 50 combinations.
    """
    combinations = [list(chosen) for chosen in itertools.product(*map(_values, words))]
    if len(combinations) > 50:
        raise ConfigError(
            "these are too many alternatives for a table",
            where="command line",
            got=f"{len(combinations)} combinations",
            expected="at most 50",
            advice="give fewer values per word",
        )
    return combinations


def _values(word: str) -> list[str]:
    try:
        (override,) = OverridesParser.create().parse_overrides([word])
    except HydraException:
        return [word]  # composing the configuration reports the error
    if not override.is_sweep_override():
        return [word]
    return [f"{word.partition('=')[0]}={value}" for value in override.sweep_string_iterator()]
