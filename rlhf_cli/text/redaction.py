"""Recognise secrets and remove them from everything that is written or shown; make printed text safe for a terminal.

These texts are hidden wherever they occur:
- values of environment variables whose names mark a secret (HF_TOKEN, my_api_key, ...), or whose values are addresses
  with a password
- values that a configuration took from the environment or that were typed under a secret key (`remember`)
- texts in the shape of a secret, such as a token of Hugging Face or a password in an address (`_SHAPES`, `_IN_TEXT`)

Values of fewer than six characters and paths that exist on this machine are not secrets: to hide `1` or `/home` would
make every text unreadable.

Code that writes a file of a run folder calls `redacted` or `redacted_tree`; printed text goes through a `SafeStream`.

A completion, a row or an exception may hold codes that clear the screen, recolour it, or turn the reading direction.
`printable` writes them as `\\x1b` or `\\u202e`. stdout and stderr do so with everything written to them except `Drawn`
text, whose codes are our own.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import traceback
import urllib.parse
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import TextIO, TypeVar, cast

from rlhf_cli.errors import shortened

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
_OF_TEXT = re.compile(
    r"(^|_)(eos|eot|pad|bos|unk|sep|cls|mask|image|video|audio|stop|end|start|prefix|suffix|special|think)_token$",
    re.IGNORECASE,
)
"""Names of tokens of a tokenizer, which are texts and no secrets."""
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
"""Maps the kind of secret to its pattern. A group, if the pattern has one, is kept."""

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
"""Patterns of a secret beside its name in a text; the group is kept. Too eager for a configuration's own values."""

_SIGNS = (
    *("hf_", "sk-", "akia", "asia", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "xox", "eyj", "://"),
    *("key=", "token=", "auth=", "password", "secret", "sig=", "signature="),
    *("authorization", "bearer", "api_key", "apikey", "passwd", "hub_token", "auth_token", "access_token"),
)
"""Lowercase pre-filter: a text that matches a pattern above contains at least one of these."""
_OTHER_CASES = re.compile("[\u0130\u0131\u017f\u212a]")
"""The other characters that `re.IGNORECASE` treats as i, s or k."""

_remembered: set[str] = set()
_Node = TypeVar("_Node")


def is_secret_key(name: str) -> bool:
    """Return whether a key marks a secret by its last part: hub_token, a.b.apikey; not eos_token or max_tokens."""
    last = name.rpartition(".")[2]
    return bool(_SECRET_KEY.search(last)) and not _OF_TEXT.search(last)


def secret_in(text: str) -> tuple[str, str | None] | None:
    """Return which secret a text holds, by its shape or as an environment variable's value, and that variable."""
    for kind, shape in _SHAPES.items():
        if shape.search(text):
            return kind, None
    for name, value in os.environ.items():
        if len(value) >= _SHORTEST_TYPED and value in text and _holds_secret(name, value):
            return f"the value of the environment variable {name}", name
    return None


def remember(value: object) -> None:
    """Hide this value everywhere from now on: it came from the environment or from a secret key."""
    if isinstance(value, str) and _is_worth_hiding(value) and not value.startswith(("${", "$\\{")):
        _remembered.add(value)


def remember_variable(name: str, value: str, *, key: str) -> None:
    """Hide the value of a variable, unless it is a plain word (a tag as `finished`) and no name marks a secret."""
    if is_secret_key(key) or _marks_secret(name) or not _WORD.fullmatch(value):
        remember(value)


def remember_typed(words: Iterable[str]) -> None:
    """Hide the value after `=` in each command line word with a secret key."""
    for word in words:
        key, equals, value = word.partition("=")
        if equals and is_secret_key(key.lstrip("+~-")):
            remember(value.strip("'\""))


def remembered() -> list[str]:
    """Return the remembered values, so that another process can hide them too."""
    return sorted(_remembered)


@contextlib.contextmanager
def forgetting() -> Iterator[None]:
    """Open a context that forgets on exit every value remembered inside it."""
    before = set(_remembered)
    try:
        yield
    finally:
        _remembered.intersection_update(before)


def redacted(text: str) -> str:
    """Return a text with each secret replaced by ***."""
    return _text_hider()(text)


def redacted_tree(node: _Node, *, values_only: bool = False) -> _Node:
    """Return a tree with secrets in texts and values of secret keys hidden; `values_only`: only known secrets."""
    return cast(_Node, _redacted(node, _text_hider(values_only=values_only), values_only))


def _redacted(node: object, hide: Callable[[str], str], values_only: bool) -> object:
    # Not a closure: one that calls itself is a cycle, which the garbage collector would have to find.
    if isinstance(node, str):
        return hide(node)
    if isinstance(node, dict):
        return {
            _redacted(key, hide, values_only): HIDDEN
            if not values_only and _is_hidden_by_key(key, item)
            else _redacted(item, hide, values_only)
            for key, item in node.items()
        }
    if isinstance(node, list) or type(node) is tuple:
        items = [_redacted(item, hide, values_only) for item in node]
        return items if isinstance(node, list) else tuple(items)
    return node


def _text_hider(*, values_only: bool = False) -> Callable[[str], str]:
    """Return a function that hides the secrets in a text. It reads the environment once, for thousands of texts."""
    of_environment = {value for name, value in os.environ.items() if _holds_secret(name, value)}
    values = _forms(frozenset(_remembered | of_environment))

    def hide(text: str) -> str:
        for value in values:
            text = text.replace(value, HIDDEN)
        small = text.lower()
        if values_only or not (any(sign in small for sign in _SIGNS) or _OTHER_CASES.search(text)):
            return text  # nearly every text; the eleven patterns take a hundred times as long
        for shape in (*_SHAPES.values(), *_IN_TEXT):
            text = shape.sub(lambda match: (match[1] if match.re.groups else "") + HIDDEN, text)
        return text

    return lru_cache(10_000)(hide)  # a table repeats its keys in every row


def _is_hidden_by_key(key: object, value: object) -> bool:
    """Return whether a value is hidden because of its key; a reference to the environment is not a secret."""
    is_reference = isinstance(value, str) and (value.startswith("${oc.env:") or value in ("", HIDDEN))
    return isinstance(key, str) and isinstance(value, str) and not is_reference and is_secret_key(key)


@lru_cache(maxsize=16)
def _forms(values: frozenset[str]) -> list[str]:
    """Return the texts to hide, in every form in which they may be written, longest first."""
    found: set[str] = set()
    for value in values:
        parts = {value, *(line for line in value.splitlines() if len(line) >= _SHORTEST_LINE)}
        if (password := _password_in(value)) is not None:
            parts |= {password, urllib.parse.unquote(password)}
        for part in parts:
            # As written by Python, JSON and addresses.
            quoted = (urllib.parse.quote(part, safe=""), urllib.parse.quote_plus(part))
            found |= {part, repr(part)[1:-1], json.dumps(part)[1:-1], *quoted}
    return sorted(found, key=len, reverse=True)


@lru_cache(maxsize=1024)
def _holds_secret(name: str, value: str) -> bool:
    """Return whether a variable's name marks a secret, or its value is an address with a password."""
    return (_marks_secret(name) or _password_in(value) is not None) and _is_worth_hiding(value)


def _marks_secret(variable: str) -> bool:
    return bool(_SECRET_VARIABLE.search(variable)) and not _OF_TEXT.search(variable)


def _password_in(address: str) -> str | None:
    """Return the password in an address, or None if it has none or it is too short to hide."""
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


CONTROL = re.compile(r"[\0-\x08\x0b-\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]|\r(?!\n)")
"""C0 except tab and line ends, DEL, C1, bidirectional embeddings, overrides and isolates, and lone surrogates."""
_PADDING = re.compile(r" +(?=\n)")
_IN_ASCII = str.maketrans("●○★→↓…▁▂▃▄▅▆▇█", "*o*>v~_.,-=+x#", "") | {ord("±"): "+-"}
"""Signs of our tables -> what stands for them in a locale without them, as wide and distinct from each other."""
_BARS = "tqdm"
"""The library whose progress bars move the cursor; recognised by the name of the calling module."""


class Drawn(str):
    """Text for a terminal in which all control codes are our own."""


def printable(text: str) -> str:
    """Return a text with its control codes escaped as `\\x1b`; keep tabs and line ends."""
    return CONTROL.sub(lambda match: f"\\x{code:02x}" if (code := ord(match[0])) < 0x100 else f"\\u{code:04x}", text)


class OverStream:
    """A text stream that changes what is written to another stream."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)


class OutputLost(OSError):
    """What was printed did not arrive, such as on a full disk. A closed pipe is a BrokenPipeError instead."""


@contextlib.contextmanager
def printing() -> Iterator[None]:
    """Open a context in which an output that cannot be written raises OutputLost, apart from errors of other files."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputLost(error.errno, error.strerror) from error


def is_of_a_bar() -> bool:
    """Return whether a progress bar called the `write` that asks, directly or through another OverStream."""
    caller = sys._getframe(2)
    while caller.f_back is not None and isinstance(caller.f_locals.get("self"), OverStream):
        caller = caller.f_back
    return str(caller.f_globals.get("__name__", "")).startswith(_BARS)


class SafeStream(OverStream):
    """A text stream that removes secrets and foreign control codes and writes to another stream."""

    def write(self, text: str) -> int:
        """Write a text made safe; return the length of the original text."""
        safe = redacted(text)
        safe = safe if isinstance(text, Drawn) or is_of_a_bar() else printable(safe)
        with printing():
            try:
                self._stream.write(safe)
            except UnicodeEncodeError as error:  # a locale without arrows and dots
                plain = safe.translate(_IN_ASCII)
                self._stream.write(plain.encode(error.encoding, "replace").decode(error.encoding))
        return len(text)

    def flush(self) -> None:
        """Write what is buffered."""
        with printing():
            self._stream.flush()

    def writelines(self, lines: Iterable[str]) -> None:
        """Write texts made safe."""
        for line in lines:
            self.write(line)


class DrawnOn(OverStream):
    """A text stream that passes its text on as `Drawn`, without the blanks that pad tables unless at a terminal."""

    def write(self, text: str) -> int:
        """Write a text whose control codes are our own."""
        return self._stream.write(Drawn(text if self._stream.isatty() else _PADDING.sub("", text)))


@contextlib.contextmanager
def safe_output() -> Iterator[None]:
    """Make text printed to stdout and stderr safe inside the `with` block."""
    with contextlib.ExitStack() as stack:
        if not isinstance(sys.stdout, SafeStream):
            stack.enter_context(contextlib.redirect_stdout(cast(TextIO, SafeStream(sys.stdout))))
        if not isinstance(sys.stderr, SafeStream):
            stack.enter_context(contextlib.redirect_stderr(cast(TextIO, SafeStream(sys.stderr))))
        yield


def safe_output_for_good(values: Iterable[str]) -> None:
    """Make this process's output safe until it ends, and hide these values in it."""
    for value in values:
        remember(value)
    sys.stdout, sys.stderr = cast(TextIO, SafeStream(sys.stdout)), cast(TextIO, SafeStream(sys.stderr))


def traceback_of(error: BaseException) -> str:
    """Return an error's traceback as Python prints it, shortened."""
    return shortened("".join(traceback.format_exception(error)))
