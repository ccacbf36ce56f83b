"""Turn what a user types into Hydra's overrides.

Hydra itself needs `+` for new keys and no sign for existing ones, so users would have to know the tree. Here every
value override becomes `++key=value` (set it, whether or not it exists), and pydantic validates the key afterwards.
Group choices and deletions (`~key`) keep Hydra's meaning; overrides of Hydra itself (`hydra.*`) are refused.
"""

from __future__ import annotations

import re
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from rlhf_cli.config.conf_folders import APPENDED_GROUPS, Groups, groups
from rlhf_cli.errors import ConfigError, Prose
from rlhf_cli.text.suggest import nearest

_OVERRIDE = re.compile(r"^(?P<sign>\+{0,2})(?P<key>[^=+~][^=]*)=(?P<value>.*)$", re.DOTALL)
_EXPECT = "expect"
"""A key whose value may be a list or a mapping, which Hydra cannot merge; a typed value replaces all of it."""
EXPECT_AFRESH = f"++{_EXPECT}=null"
"""The override that precedes a typed `expect`."""
_PLAIN_OPTIONS = re.compile(r"^[\w./,:-]+$")
_BY_PATH = {"model": "local", "data": "file"}
"""Maps a group to its option with a `path` to the user's own model or data."""


def rewrite(typed: list[str]) -> list[str]:
    """Return the Hydra overrides for what the user typed, in the order Hydra applies them.

    Raise ConfigError for a word that is not an override and for a group option that does not exist.
    """
    known = groups()
    rewritten: list[str] = []
    appended: dict[str, list[str]] = {group: [] for group in APPENDED_GROUPS}
    for place, text in enumerate(typed):
        override = _rewrite_one(text, known)
        if override is None:
            from rlhf_cli.config.composing_errors import not_an_override  # needed only for a mistake

            raise not_an_override(typed, place, known)
        group = override.lstrip("+").partition("=")[0]
        if group == _EXPECT:
            rewritten.append(EXPECT_AFRESH)
        appended.get(group, rewritten).append(override)
    # `exp` before `debug`: the last one composed wins.
    return [*rewritten, *(override for group in APPENDED_GROUPS for override in appended[group])]


def quote_paths(text: str) -> str:
    """Return the word with its value quoted if Hydra would parse the value as grammar although it is plain text.

    This concerns existing paths (the folder of a sweep's run is `weight=0.5,seed=2`), stop rules (`kl > 10`) and prompt
    templates (`Question: {question}`).
    """
    key, equals, value = text.partition("=")
    if not equals or "'" in value or '"' in value:
        return text
    name = key.lstrip("+")
    if name.startswith("stop.") and any(sign in value for sign in "<>="):
        return f'{key}="{value}"'
    is_template = name == "data.prompt" and "{" in value and "${" not in value and value[0] != "["
    if is_template or (any(sign in value for sign in "=,") and Path(value).expanduser().exists()):
        return f"{key}='{value}'"
    return text


def refuse_several_values(typed: list[str]) -> None:
    """Raise ConfigError for a word that gives a key several values, which only a sweep accepts."""
    for text in map(quote_paths, typed):
        key, equals, value = text.partition("=")
        if not equals or key.startswith(("~", "hydra")) or not any(sign in value for sign in ",("):
            continue
        try:
            override = OverridesParser.create().parse_override(text)
        except HydraException:
            continue  # composing reports what is wrong with it
        if override.is_sweep_override():
            raise ConfigError(
                "several values for one key are a sweep: a run for each",
                where="command line",
                got=text,
                expected=f"one value here; a list is '{key}=[a,b]', a text with a comma \"{key}='a,b'\"",
                hint=f"rlhf train -m ... '{text}'",
            )


def _rewrite_one(typed: str, known: Groups) -> str | None:
    """Return Hydra's override for one word, or None if the word is not an override."""
    text = quote_paths(typed)
    if text.startswith("~"):
        return text
    match = _OVERRIDE.match(text)
    if match is None:
        return None
    key, value = match["key"].strip(), match["value"]
    refuse_hydra(key, text)
    group, at, _ = key.partition("@")
    is_dict = value.startswith("{") and not at  # model={path: x} sets values; it chooses no option
    if group in known and not is_dict:
        _require_options(key, value, known[group])
        if group == "reward" and not at:
            raise ConfigError(
                "a ready-made reward needs a name of your own",
                where="command line",
                got=text,
                hint=f"reward@rewards.NAME={value}",
            )
        return f"{'+' if at or group in APPENDED_GROUPS else ''}{key}={value}"
    if at or "/" in group:
        raise ConfigError(
            f"unknown group {group!r}",
            where="command line",
            got=text,
            expected="one of " + ", ".join(known),
            hint=nearest(group, known),
        )
    return f"++{key}={value}"


def refuse_hydra(key: str, text: str) -> None:
    """Raise ConfigError for an override of Hydra's own settings, which would have no effect here."""
    if key == "hydra" or key.startswith(("hydra.", "hydra/")):
        raise ConfigError(
            "Hydra only composes the configuration; it runs nothing here",
            where="command line",
            got=text,
            expected="run.root and run.name for the run folder, -m for a sweep, -j N for runs at a time",
            hint=Prose("leave it out; docs/how-to/sweeps.md says how sweeps are run"),
        )


def _require_options(key: str, value: str, options: dict[str, Path]) -> None:
    group = key.partition("@")[0]
    if value and not _PLAIN_OPTIONS.match(value):
        return  # glob(...), choice(...): Hydra's own grammar decides
    for option in value.split(","):
        if option not in options:
            from rlhf_cli.tables.former_names import VALUE_SYNONYMS  # needed only for a mistake

            close = VALUE_SYNONYMS.get(group, {}).get(option.lower())
            close = close if close in options else nearest(option, options)
            is_own = group in _BY_PATH and ("/" in option or ":" in option or Path(option).exists())
            own = f"{group}={_BY_PATH[group]} {group}.path={option}" if is_own else f"rlhf list {group}"
            raise ConfigError(
                f"there is no {group} named {option!r}",
                where="command line",
                got=f"{key}={value}",
                expected="one of " + ", ".join(options),
                hint=f"{key}={close}" if close else own,
            )
