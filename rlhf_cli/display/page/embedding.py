"""Put data, scripts and plotly into one HTML file, and choose colours.

A Content-Security-Policy allows only scripts with the hashes of our own and forbids every request. Text from a model, a
data set or a configuration is treated as data. jinja escapes it in the HTML. In JSON it is escaped here, so that
neither `</script>` nor `<!--` can end the element that holds it. Scripts of the page set texts, never HTML.

plotly's package has one bundle of 4.8 MB and no partial one. Deflated and in base64 it is 2 MB; the browser inflates it
(DecompressionStream: Chrome 80, Safari 16.4, Firefox 113). Its hash is in the policy, so it may run like our scripts.
The numbers of the curves are compressed the same way, to less than half the size of their JSON.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.resources
import itertools
import json
import re
import zlib
from collections.abc import Sequence
from functools import cache

from rlhf_cli.text.json_values import finite_or_none

_CLOSES_A_SCRIPT = re.compile("[<>&\u2028\u2029]")
_DEFLATE_LEVEL = 6
_DIGITS = 4


def script_json(content: object) -> str:
    """Return JSON that is safe inside a `<script>` element for any content.

    `<`, `>`, `&` and the line separators U+2028 and U+2029, which older JavaScript does not allow in strings, are
    written as escapes; JSON.parse undoes them. Raise ValueError for NaN and infinity, which JSON does not have.
    """
    plain = json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    plain = _CLOSES_A_SCRIPT.sub(lambda match: f"\\u{ord(match[0]):04x}", plain)
    return plain.encode("utf-8", errors="replace").decode("utf-8")  # a lone surrogate cannot be encoded as UTF-8


def deflated(text: str) -> str:
    """Return a text deflated and in base64."""
    return base64.b64encode(zlib.compress(text.encode(), _DEFLATE_LEVEL)).decode()


def rounded(value: float | None) -> float | int | None:
    """Return a number rounded to four significant digits, or None if it is not finite."""
    if value is None or finite_or_none(float(value)) is None:
        return None
    short = float(f"{float(value):.{_DIGITS}g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short


def policy(scripts: Sequence[str]) -> str:
    """Return a Content-Security-Policy that allows only scripts with these hashes and loads nothing.

    plotly sets styles on elements and adds a style sheet, hence `unsafe-inline` for styles; a style cannot load
    anything either.
    """
    hashes = " ".join(f"'sha256-{digest}'" for digest in scripts)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def sha256(script: str) -> str:
    """Return the base64 SHA-256 hash of a script's UTF-8, as used in a policy."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


@cache
def plotly_bundle() -> tuple[str, str]:
    """Return plotly's script from the installed package, deflated and in base64, and the hash of the original."""
    script = importlib.resources.files("plotly").joinpath("package_data/plotly.min.js").read_text(encoding="utf-8")
    return deflated(script), sha256(script)


def own_file(name: str) -> str:
    """Return the text of one of the page's own scripts or style sheets."""
    folder = importlib.resources.files("rlhf_cli.display.page").joinpath("static")
    return folder.joinpath(name).read_text(encoding="utf-8")


_LIGHT = ("#2563a8", "#c2570c", "#2f7d4f", "#8a4fa3", "#b3374a", "#6b6400", "#0f7c88", "#7a5233")
_DARK = ("#74aef0", "#f2a25c", "#6cc48c", "#cf9ee6", "#f28b99", "#cfc653", "#55c6d2", "#cda57c")


def colours(count: int) -> list[tuple[str, str]]:
    """Return one (colour on light background, colour on dark background) per setting; beyond eight they repeat."""
    return list(itertools.islice(itertools.cycle(zip(_LIGHT, _DARK, strict=True)), count))
