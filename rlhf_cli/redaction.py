"""Knows what a secret looks like, and takes secrets out of whatever is written or shown. The rule lives here alone.

Hidden are texts, wherever they stand: the values of environment variables whose names say that they hold a secret
(HF_TOKEN, my_api_key, ...) or whose values are addresses with a password, what a configuration took from the
environment or was typed under such a key (`remember`), and what has the shape of a secret: tokens of Hugging Face,
OpenAI, Anthropic, AWS, GitHub and Slack, JSON web tokens, passwords in addresses, `?api_key=...`, `Authorization:`
headers. A value of fewer than six characters and the path of something on this machine are no secrets: to hide `1` or
`/home` would make every text unreadable.

Whoever writes a file of a run folder calls `redacted` or `redacted_tree`; what is printed goes through a
`terminal_output.SafeStream`.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import urllib.parse
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import TypeVar, cast

HIDDEN = "***"
_SHORTEST = 6
_SHORTEST_LINE = 16
_SHORTEST_TYPED = 8
_WORD = re.compile(r"[A-Za-z]+([ _-][A-Za-z]+)?")

_SECRET_KEY = re.compile(
    r"(^|[_.-])(token|api_?key|pass(word|wd|phrase)?|secret|(access|private|secret|account|auth)_?key|secret_access_key"
    r"|authori[sz]ation|credentials?|bearer|auth_?token|access_?token)$",
    re.IGNORECASE,
)
_OF_TEXT = re.compile(r"^(eos|pad|bos|unk|sep|cls|mask|image|video|audio|stop|end|start|prefix|suffix)_token$")
_SECRET_VARIABLE = re.compile(
    r"(TOKEN|KEY|SECRET|PASSWORD|PASSWD|PASSPHRASE|PASSCODE|CREDENTIALS?|BEARER|JWT|_AUTH|_PAT|_PASS|_PWD?)(_?\d+)?$",
    re.IGNORECASE,
)

_SHAPES = {
    "a Hugging Face token": re.compile(r"\bhf_[A-Za-z0-9]{20,}"),
    "an OpenAI or Anthropic key": re.compile(r"\bsk-[A-Za-z0-9_-]{20,}"),
    "an AWS key": re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"),
    "a GitHub token": re.compile(r"\b(?:gh[pousr]_[A-Za-z0-9]{30,}|github_pat_\w{30,})"),
    "a Slack token": re.compile(r"\bxox[abprs]-[A-Za-z0-9-]{10,}"),
    "a JSON web token": re.compile(r"\beyJ[\w-]{10,600}\.[\w-]{10,4000}\.[\w-]{5,}"),
    "a password in an address": re.compile(r"(?<=://)[^/\s:@'\"]{0,256}:[^/\s@'\"]{1,512}(?=@)"),
    "a key in an address": re.compile(
        r"(?<=[?&])((?:api_?key|key|(?:access_|auth_)?token|auth|password|secret|sig|signature)=)[^&\s#'\"]+",
        re.IGNORECASE,
    ),
}
"""Maps what it is -> how it looks; a group, where there is one, stays."""

_IN_TEXT = (
    re.compile(
        r"(\bauthorization['\"]?\s*[:=]\s*['\"]?(?:(?:bearer|basic|token)\s+)?)(?!\$\\?\{)[^\s'\",}]{6,}", re.IGNORECASE
    ),
    re.compile(r"(\bbearer\s+)[A-Za-z0-9._~+/=-]{16,}", re.IGNORECASE),
    re.compile(
        r"((?<![A-Za-z])(?:api_?key|password|passwd|secret|hub_token|hf_token|auth_token|access_token)"
        r"['\"]?\s*[:=]\s*['\"]?)(?![<\[{(*]|None\b|null\b|\$\\?\{)[^\s'\",}]{6,}",
        re.IGNORECASE,
    ),
)
"""How a secret is written in a text beside its name; the group stays. Too eager for a configuration's own values."""

_SIGNS = (
    *("hf_", "sk-", "akia", "asia", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "xox", "eyj", "://"),
    *("key=", "token=", "auth=", "password", "secret", "sig=", "signature="),
    *("authorization", "bearer", "api_key", "apikey", "passwd", "hub_token", "auth_token", "access_token"),
)
"""Every text in which one of the shapes above is found has one of these in it, in small letters."""
_OTHER_CASES = re.compile("[\u0130\u0131\u017f\u212a]")
"""What `re.IGNORECASE` takes for an i, an s or a k beside small and capital ones."""

_remembered: set[str] = set()
_Node = TypeVar("_Node")


def is_secret_key(name: str) -> bool:
    """Return whether a key of that name holds a secret: hub_token, apikey, password; not eos_token or max_tokens."""
    return bool(_SECRET_KEY.search(name)) and not _OF_TEXT.match(name)


def secret_shape(text: str) -> str | None:
    """Return what kind of secret stands in a text by its shape, None where none does."""
    return next((kind for kind, shape in _SHAPES.items() if shape.search(text)), None)


def remember(value: object) -> None:
    """Hide this value from now on wherever it appears: it came from the environment, or stood under a secret key."""
    if isinstance(value, str) and _is_worth_hiding(value) and not value.startswith(("${", "$\\{")):
        _remembered.add(value)


def remember_variable(name: str, value: str, *, key: str) -> None:
    """Hide what a configuration's `key` takes from the environment variable `name`.

    A plain word of letters is hidden only where the name or the key says that it is a secret: `finished` as a tag must
    not be taken out of every text.
    """
    if is_secret_key(key.rpartition(".")[2]) or _SECRET_VARIABLE.search(name) or not _WORD.fullmatch(value):
        remember(value)


def secret_variable_in(text: str) -> str | None:
    """Return the name of an environment variable whose secret stands in a text, None where none does."""
    for name, value in os.environ.items():
        if len(value) >= _SHORTEST_TYPED and _holds_secret(name, value) and value in text:
            return name
    return None


def remember_typed(words: Iterable[str]) -> None:
    """Hide what stands behind `=` in a word of a command line whose key is a secret's."""
    for word in words:
        key, equals, value = word.partition("=")
        if equals and is_secret_key(key.lstrip("+~-")):
            remember(value.strip("'\""))


def remembered() -> list[str]:
    """Return the values that are hidden because they were remembered, for a process that is to hide them too."""
    return sorted(_remembered)


@contextlib.contextmanager
def forgetting() -> Iterator[None]:
    """Open a context at whose end everything is forgotten that was remembered in it."""
    before = set(_remembered)
    try:
        yield
    finally:
        _remembered.intersection_update(before)


def redacted(text: str) -> str:
    """Return a text with *** in the place of every secret in it."""
    return _without_shapes(redacted_values(text))


def redacted_values(text: str) -> str:
    """Return a text with *** in the place of the values that are known to be secrets, whatever looks like one.

    For texts that a model or a data set has written: what they look like is not ours to change.
    """
    return _without(text, _known_values())


def redacted_tree(node: _Node, *, values_only: bool = False) -> _Node:
    """Return lists, dicts and texts with every text in them redacted; under a secret's key it is hidden whole.

    What is neither stays what it is. With `values_only` only known values are hidden, as `redacted_values` does.
    """
    if values_only and not _known_values():
        return node
    hide = text_hider(values_only=values_only)

    def walk(tree: object) -> object:
        if isinstance(tree, str):
            return hide(tree)
        if isinstance(tree, dict):
            return {
                walk(key): HIDDEN if not values_only and is_hidden_by_key(key, item) else walk(item)
                for key, item in tree.items()
            }
        if isinstance(tree, list):
            return [walk(item) for item in tree]
        return tuple(walk(item) for item in tree) if type(tree) is tuple else tree

    return cast(_Node, walk(node))


def text_hider(*, values_only: bool = False) -> Callable[[str], str]:
    """Return what hides the secrets of one text after another, by the environment as it is now.

    It is read once: a table has thousands of texts.
    """
    values = _known_values()

    def hide(text: str) -> str:
        text = _without(text, values)
        return text if values_only else _without_shapes(text)

    return hide


def _without(text: str, values: Iterable[str]) -> str:
    for value in values:
        if value in text:
            text = text.replace(value, HIDDEN)
    return text


def _without_shapes(text: str) -> str:
    small = text.lower()
    if not any(sign in small for sign in _SIGNS) and (text.isascii() or not _OTHER_CASES.search(text)):
        return text  # nearly every text: eleven patterns cost a hundred times as much
    for shape in (*_SHAPES.values(), *_IN_TEXT):
        text = shape.sub(lambda match: (match[1] if match.re.groups else "") + HIDDEN, text)
    return text


def is_hidden_by_key(key: object, value: object) -> bool:
    """Return whether a value is hidden for its key; a reference to the environment says where it is, not what."""
    is_reference = isinstance(value, str) and (value.startswith("${oc.env:") or value in ("", HIDDEN))
    return isinstance(key, str) and isinstance(value, str) and not is_reference and is_secret_key(key)


_last_known: tuple[dict[object, object], set[str], list[str]] | None = None
"""The environment, what was remembered, and the texts to hide that these made."""


def _known_values() -> list[str]:
    """Return the texts to hide, in every form in which they are written, the longest first.

    It is asked many times a step, and the environment is decoded variable by variable: only where it, or what is
    remembered, is not what it was when this was last asked.
    """
    global _last_known
    as_bytes: object = getattr(os.environ, "_data", None)  # the dict that os.environ decodes; compared in microseconds
    if _last_known is not None and _last_known[0] == as_bytes and _last_known[1] == _remembered:
        return _last_known[2]
    of_environment = {value for name, value in os.environ.items() if _holds_secret(name, value)}
    found = _forms(frozenset(_remembered | of_environment))
    _last_known = (dict(as_bytes), set(_remembered), found) if isinstance(as_bytes, dict) else None
    return found


@lru_cache(maxsize=16)
def _forms(values: frozenset[str]) -> list[str]:
    found: set[str] = set()
    for value in values:
        parts = {value, *(line for line in value.splitlines() if len(line) >= _SHORTEST_LINE)}
        password = _password_in(value)
        parts |= {password, urllib.parse.unquote(password)} if password else set()
        for part in parts:
            # As Python, JSON and an address write it.
            quoted = (urllib.parse.quote(part, safe=""), urllib.parse.quote_plus(part))
            found |= {part, repr(part)[1:-1], json.dumps(part)[1:-1], *quoted}
    return sorted(found, key=len, reverse=True)


@lru_cache(maxsize=1024)
def _holds_secret(name: str, value: str) -> bool:
    """Return whether a variable's name says that it holds a secret, or its value is an address with a password."""
    return bool(_SECRET_VARIABLE.search(name) or _password_in(value)) and _is_worth_hiding(value)


def _password_in(address: str) -> str | None:
    """Return the password of an address, None where it has none that is long enough to hide."""
    with contextlib.suppress(ValueError):
        password = urllib.parse.urlsplit(address).password if "://" in address else None
        return password if password and len(password) >= _SHORTEST else None
    return None


@lru_cache(maxsize=1024)
def _is_worth_hiding(value: str) -> bool:
    if len(value.strip()) < _SHORTEST or "\0" in value:
        return False
    try:
        return not os.path.exists(os.path.expanduser(value))
    except OSError:  # too long for a path
        return True
