"""Turn what a user types into Hydra's overrides, and explain words that are no overrides.

Hydra itself needs `+` for new keys and no sign for existing ones, so users would have to know the tree. Here every
value override becomes `++key=value` (set it, whether or not it exists), and pydantic validates the key afterwards.
Group choices and deletions (`~key`) keep Hydra's meaning; overrides of Hydra itself (`hydra.*`) are refused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from rlhf_cli.config.conf_folders import APPENDED_GROUPS, groups
from rlhf_cli.errors import ConfigError, Prose
from rlhf_cli.tables.former_names import HYDRA_INSTEAD, SPOKEN_VALUES
from rlhf_cli.text.suggest import nearest

_CLOSING = {"[": "]", "{": "}", "(": ")"}
_PLAIN = re.compile(r"^[\w./+-]*$")
_ENTRY = re.compile(r"(?P<before>[\[{,]\s*(?:\w+\s*:)?\s*)(?P<text>[^\[\]{},]+?)(?P<behind>\s*(?=[,\]}]))")

Groups = dict[str, dict[str, Path]]


def not_an_override(typed: Sequence[str], place: int, known: Groups) -> ConfigError:
    """Return an error for the word at this position of a command line, which is not an override, with a suggestion."""
    text = typed[place]
    return ConfigError(
        f"{text!r} is not an override",
        where="command line",
        expected="key=value, such as trainer.args.learning_rate=1e-5, or a group choice, such as +exp=quickstart",
        hint=_broken_at_blanks(typed, place) or _choice(text, known) or _with_its_value(typed, place),
    )


def _choice(text: str, known: Groups) -> str | None:
    """Return the group choice for a bare name: an experiment, or else any option with that name."""
    path = Path(text)
    if path.suffix in (".yaml", ".yml"):
        group = path.parent.name if path.parent.name in known else "exp"
        return f"{'+' if group == 'exp' else ''}{group}={path.stem}"
    experiments = known.get("exp", {})
    if text in experiments:
        return f"+exp={text}"
    groups = [group for group in known if text in known[group] and "/" not in group]
    if groups:
        return f"reward@rewards.{text}={text}" if groups[0] == "reward" else f"{groups[0]}={text}"
    close = nearest(text, experiments)
    return f"+exp={close}" if close is not None else None


def _with_its_value(typed: Sequence[str], place: int) -> str | None:
    """Return `key=value` if the value was typed after a space, or `key=VALUE` without a value."""
    text = typed[place]
    behind = typed[place + 1] if place + 1 < len(typed) else ""
    is_key = re.fullmatch(r"[A-Za-z_]\w*(\.\w+)*", text) is not None
    if not is_key:
        return "rlhf list exp"
    has_value = behind and "=" not in behind and not behind.startswith(("-", "~", "+"))
    if has_value:
        return f"{text}={behind}"
    return f"{text}=VALUE" if "." in text or _is_section_or_key(text) else "rlhf list exp"


def _is_section_or_key(text: str) -> bool:
    from rlhf_cli.config.schema.experiment import valid_keys  # it imports the pydantic classes of all sections

    return text in valid_keys([])


def _broken_at_blanks(typed: Sequence[str], place: int) -> str | None:
    """Return, in quotes, the words that were one before the shell split them: a later word closes a bracket of the
    first.
    """
    for first in range(place, -1, -1):
        if "=" in typed[first] and _missing(typed[first]):
            for last in range(place, len(typed)):
                whole = " ".join(typed[first : last + 1])
                if not _missing(whole):
                    return in_shell_quotes(readable(whole) or whole)
    return None


def readable(text: str) -> str | None:
    """Return an override that Hydra can parse, with its brackets closed or special characters quoted; else None."""
    key, equals, value = text.partition("=")
    if not equals:
        return None
    closed = value + _missing(value)
    inner = _ENTRY.sub(_quoted, closed)
    for candidate in (closed, inner, value.replace('"', "").replace("'", "") + _missing(value), _in_quotes(value)):
        whole = f"{key}={candidate}"
        try:
            OverridesParser.create().parse_override(whole)
        except HydraException:
            continue
        return whole
    return None


def in_shell_quotes(text: str) -> str:
    """Return a word in shell quotes of a kind that it does not contain."""
    return f"'{text}'" if "'" not in text else f'"{text}"'


def _quoted(match: re.Match[str]) -> str:
    text = match["text"].strip()
    is_plain = _PLAIN.match(text) is not None or text[:1] in "'\"$"
    return f"{match['before']}{text if is_plain else _in_quotes(text)}{match['behind']}"


def _in_quotes(text: str) -> str:
    bare = text.strip("'\"")
    return f"'{bare}'" if "'" not in bare else f'"{bare}"'


def _missing(text: str) -> str:
    """Return the brackets that would close the open ones in a text; '' if all are closed."""
    open_ones: list[str] = []
    for sign in text:
        if sign in _CLOSING:
            open_ones.append(_CLOSING[sign])
        elif open_ones and sign == open_ones[-1]:
            open_ones.pop()
    return "".join(reversed(open_ones))


_OVERRIDE = re.compile(r"^(?P<sign>\+{0,2})(?P<key>[^=+~][^=]*)=(?P<value>.*)$", re.DOTALL)
_OF_ANY_SHAPE = "expect"
"""A key whose value may be a list or a mapping; a typed value replaces all of it."""
_TEMPLATE = "data.prompt"
EXPECT_AFRESH = f"++{_OF_ANY_SHAPE}=null"
"""The override that precedes a typed `expect`."""
_PLAIN_OPTIONS = re.compile(r"^[\w./,:-]+$")
_BY_PATH = {"model": "local", "data": "file"}
"""Maps a group to its choice with a `path` for the user's own."""


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
            raise not_an_override(typed, place, known)
        group = override.lstrip("+").partition("=")[0]
        if group == _OF_ANY_SHAPE:  # Hydra would merge, and fails for a list and a mapping
            rewritten.append(EXPECT_AFRESH)
        appended.get(group, rewritten).append(override)
    # `exp` before `debug`: the last one composed wins.
    return [*rewritten, *(override for group in APPENDED_GROUPS for override in appended[group])]


def quote_paths(text: str) -> str:
    """Return the word with its value quoted if the value is an existing path that Hydra would parse as grammar.

    Folders of a sweep's runs have names such as `weight=0.5,seed=2`. Stop rules (`kl > 10`) and prompt templates
    (`Question: {question}`) are also quoted.
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
            hint=nearest(group, known),
        )
    return f"++{key}={value}"


def refuse_hydra(key: str, text: str) -> None:
    """Raise ConfigError for an override of Hydra's own settings, which would have no effect here."""
    if key != "hydra" and not key.startswith(("hydra.", "hydra/")):
        return
    about = key.removeprefix("hydra")[1:].partition(".")[0]
    raise ConfigError(
        "this is not Hydra's to run",
        where="command line",
        got=text,
        expected=HYDRA_INSTEAD.get(about, "settings of the experiment alone"),
        hint=Prose("leave it out; docs/sweeps.md says how sweeps are run"),
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
    """Return the override for the user's own model or data, if the typed option is a folder, file, hub id or run."""
    choice = _BY_PATH.get(group)
    if choice is None or not ("/" in value or ":" in value or Path(value).exists()):
        return None
    return f"{group}={choice} {group}.path={value}"
