"""Turns what a user types into what Hydra understands.

Left alone, Hydra wants `+` for what is new and nothing for what is there, which asks the user to know the tree. Here
every value override becomes `++key=value` (set it, whether or not it is there) and pydantic judges the key afterwards.
Group choices and deletions (`~key`) keep Hydra's own meaning; what is about Hydra itself (`hydra.*`) is refused.
"""

from __future__ import annotations

import re
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from rlhf_cli.config.conf_folders import APPENDED_GROUPS, groups
from rlhf_cli.config.shell_words import Groups, not_an_override
from rlhf_cli.errors import ConfigError
from rlhf_cli.suggest import did_you_mean, nearest
from rlhf_cli.tables.former_names import SPOKEN_VALUES
from rlhf_cli.tables.words_of_others import HYDRA_INSTEAD

_OVERRIDE = re.compile(r"^(?P<sign>\+{0,2})(?P<key>[^=+~][^=]*)=(?P<value>.*)$", re.DOTALL)
_OF_ANY_SHAPE = "expect"
"""A key whose value may be a list or names; what is typed takes the place of the whole."""
_TEMPLATE = "data.prompt"
EXPECT_AFRESH = f"++{_OF_ANY_SHAPE}=null"
"""The override that goes before a typed `expect`."""
_PLAIN_OPTIONS = re.compile(r"^[\w./,:-]+$")
_BY_PATH = {"model": "local", "data": "file"}
"""Names the choice of a group whose `path` is a user's own."""


def rewrite(typed: list[str]) -> list[str]:
    """Return the Hydra overrides for what the user typed, in the order Hydra applies them.

    Raises ConfigError for a word that is no override and for a group option that does not exist.
    """
    known = groups()
    rewritten: list[str] = []
    appended: dict[str, list[str]] = {group: [] for group in APPENDED_GROUPS}
    for place, text in enumerate(typed):
        override = _rewrite_one(text, known)
        if override is None:
            raise not_an_override(typed, place, known)
        group = override.lstrip("+").partition("=")[0]
        if group == _OF_ANY_SHAPE:  # Hydra merges into what is there, and fails where a list meets names
            rewritten.append(EXPECT_AFRESH)
        appended.get(group, rewritten).append(override)
    # `exp` before `debug`: what is composed last wins.
    return [*rewritten, *(override for group in APPENDED_GROUPS for override in appended[group])]


def quote_paths(text: str) -> str:
    """Return the word with its value in quotes where that is a file or folder whose name Hydra would take for grammar.

    The folders of a sweep's runs are called `weight=0.5,seed=2`. A rule to stop by, `kl > 10`, is no grammar either,
    nor is a prompt's template, `Question: {question}`.
    """
    key, equals, value = text.partition("=")
    is_typed_plain = equals and not any(quote in value for quote in "'\"")
    if is_typed_plain and key.lstrip("+").startswith("stop.") and any(sign in value for sign in "<>="):
        return f'{key}="{value}"'
    if is_typed_plain and key.lstrip("+") == _TEMPLATE and "{" in value and "${" not in value and value[0] != "[":
        return f"{key}='{value}'"
    if is_typed_plain and any(sign in value for sign in "=,") and Path(value).expanduser().exists():
        return f"{key}='{value}'"
    return text


def refuse_several_values(typed: list[str]) -> None:
    """Raise ConfigError for a word that gives a key several values, which is for a sweep."""
    for text in map(quote_paths, typed):
        key, equals, value = text.partition("=")
        if not equals or key.startswith(("~", "hydra")) or not any(sign in value for sign in ",("):
            continue
        try:
            override = OverridesParser.create().parse_override(text)
        except HydraException:
            continue  # composing says what is wrong with it
        if override.is_sweep_override():
            raise ConfigError(
                "several values for one key are a sweep: a run for each",
                where="command line",
                got=text,
                expected=f"one value here; a list is '{key}=[a,b]', a text with a comma \"{key}='a,b'\"",
                hint=f"rlhf train -m ... '{text}'",
            )


def _rewrite_one(typed: str, known: Groups) -> str | None:
    """Return Hydra's override for one word, None for a word that is none."""
    text = quote_paths(typed)
    if text.startswith("~"):
        return text
    match = _OVERRIDE.match(text)
    if match is None:
        return None
    key, value = match["key"].strip(), match["value"]
    refuse_hydra(key, text)
    group, at, _ = key.partition("@")
    is_dict = value.startswith("{") and not at  # model={path: x}: values for the section, no choice of an option
    if group in known and not is_dict:
        is_appended = bool(at) or group in APPENDED_GROUPS
        _require_options(key, value, known[group])
        if group == "reward" and not at:
            raise ConfigError(
                "a ready-made reward is put under a name of yours",
                where="command line",
                got=text,
                hint=f"reward@rewards.NAME={value}",
            )
        return f"{'+' if is_appended else ''}{key}={value}"
    if at or "/" in group:
        raise ConfigError(
            f"unknown group {group!r}",
            where="command line",
            got=text,
            expected="one of " + ", ".join(known),
            hint=did_you_mean(group, known),
        )
    return f"++{key}={value}"


def refuse_hydra(key: str, text: str) -> None:
    """Raise ConfigError for a word about Hydra itself, which composes and runs nothing: it would change nothing."""
    if key != "hydra" and not key.startswith(("hydra.", "hydra/")):
        return
    about = key.removeprefix("hydra")[1:].partition(".")[0]
    raise ConfigError(
        "this is not Hydra's to run",
        where="command line",
        got=text,
        expected=HYDRA_INSTEAD.get(about, "settings of the experiment alone"),
        hint="leave it out; docs/sweeps.md says how sweeps are run",
    )


def _require_options(key: str, value: str, options: dict[str, Path]) -> None:
    group = key.partition("@")[0]
    if value and not _PLAIN_OPTIONS.match(value):
        return  # glob(...), choice(...): Hydra's own grammar decides
    for option in value.split(","):
        if option in options:
            continue
        spoken = SPOKEN_VALUES.get(group, {}).get(option.lower())
        close = spoken if spoken in options else nearest(option, options)
        raise ConfigError(
            f"there is no {group} named {option!r}",
            where="command line",
            got=f"{key}={value}",
            expected="one of " + ", ".join(options),
            hint=f"{key}={close}" if close else _by_path(group, option) or f"rlhf list {group}",
        )


def _by_path(group: str, value: str) -> str | None:
    """Return how a model or data of one's own is named, where a folder, a file, a hub id or a run was typed instead."""
    choice = _BY_PATH.get(group)
    if choice is None or not ("/" in value or ":" in value or Path(value).exists()):
        return None
    return f"{group}={choice} {group}.path={value}"
