"""Expand words with several values, `rewards.brevity.weight=0,0.1`, into one list per what-if. Imports no torch."""

from __future__ import annotations

import itertools

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from rlhf_cli.errors import ConfigError, Prose

MOST = 50


def alternatives(words: list[str]) -> list[list[str]]:
    """Return every combination of the words' values, with the syntax of `rlhf train -m`.

    Return one list if no word has several values. Raise ConfigError for more than 50 combinations.
    """
    each = [_values(word) for word in words]
    found = [list(one) for one in itertools.product(*each)]
    if len(found) > MOST:
        raise ConfigError(
            "so many what-ifs fill no table",
            where="command line",
            got=f"{len(found)} combinations",
            expected=f"at most {MOST}",
            hint=Prose("fewer values a word"),
        )
    return found


def _values(word: str) -> list[str]:
    try:
        (override,) = OverridesParser.create().parse_overrides([word])
    except HydraException:
        return [word]  # composing the configuration reports the error
    if not override.is_sweep_override():
        return [word]
    return [f"{word.partition('=')[0]}={value}" for value in override.sweep_string_iterator()]
