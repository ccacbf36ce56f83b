"""Print errors to stderr: a label and a hint on what to type next, in colour on a terminal."""

from __future__ import annotations

import os
import re
import sys

from rlhf_cli.terminal_output import Drawn, printable

_RED, _YELLOW, _GREEN, _PLAIN = "\x1b[1;31m", "\x1b[1;33m", "\x1b[32m", "\x1b[0m"
_TRY = re.compile(r"^(  (?:try|advice):)", re.MULTILINE)


def tell(label: str, text: str) -> None:
    """Print `label: text`, in colour on a colour terminal unless NO_COLOR is set."""
    text = printable(text)
    if _is_coloured():
        colour = _YELLOW if label == "stopped" else _RED
        text = _TRY.sub(rf"{_GREEN}\1{_PLAIN}", text)
        label = f"{colour}{label}:{_PLAIN}"
    else:
        label = f"{label}:"
    sys.stderr.write(Drawn(f"{label} {text}\n"))
    sys.stderr.flush()


def _is_coloured() -> bool:
    # https://no-color.org: any non-empty value disables colour.
    return sys.stderr.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
