"""Repairs words that are not overrides: split by the shell at a space, or without a bracket, a quote or `=`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from rlhf_cli.errors import ConfigError
from rlhf_cli.suggest import nearest

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
    from rlhf_cli.config.schema.keys import valid_keys  # it imports the pydantic classes of all sections

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
