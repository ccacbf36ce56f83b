"""Puts data, scripts and plotly into one HTML file so that no text of a run can become a script of the page.

What runs is decided by a Content-Security-Policy that holds the hashes of our own scripts and forbids every request.
What a model, a data set or a configuration wrote is data: escaped by jinja in the HTML, and here in JSON, where neither
`</script>` nor `<!--` can end the element that holds it. Scripts of the page set texts, never HTML.

plotly's package has one bundle, of 4.8 MB, and no partial one. Deflated and in base64 it is 2 MB; the browser inflates
it (DecompressionStream: Chrome 80, Safari 16.4, Firefox 113). Its hash is in the policy, so it runs as one of ours. The
numbers of the curves travel the same way and take less than half of their JSON.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.resources
import json
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from rlhf_cli.json_values import finite_or_none

_CLOSES_A_SCRIPT = re.compile("[<>&\u2028\u2029]")
_DEFLATE_LEVEL = 6
_DIGITS = 4


@dataclass(frozen=True)
class Bundle:
    """Holds a script as it travels: deflated in base64, and the hash of what it will be when it runs."""

    base64: str
    sha256: str


def script_json(content: object) -> str:
    """Return JSON that may stand inside a `<script>` element whatever its texts hold.

    `<`, `>`, `&` and the two line ends that JSON knows and older JavaScript does not are written as escapes, which
    JSON.parse undoes. Raises ValueError for NaN and infinity, which JSON does not have.
    """
    plain = json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    plain = _CLOSES_A_SCRIPT.sub(lambda match: f"\\u{ord(match[0]):04x}", plain)
    return plain.encode("utf-8", errors="replace").decode("utf-8")  # half of a surrogate pair has no UTF-8


def deflated(text: str) -> str:
    """Return a text as it travels: deflated, in base64."""
    return base64.b64encode(zlib.compress(text.encode(), _DEFLATE_LEVEL)).decode()


def rounded(value: float | None) -> float | int | None:
    """Return a number to four significant digits, as short as JSON can write it; None for what is no finite number."""
    if value is None or finite_or_none(float(value)) is None:
        return None
    short = float(f"{float(value):.{_DIGITS}g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short


def policy(scripts: Sequence[str]) -> str:
    """Return the Content-Security-Policy under which exactly the scripts of these hashes run, and nothing is loaded.

    plotly sets styles on elements and adds a sheet, hence `unsafe-inline` for styles; a style can load nothing either.
    """
    hashes = " ".join(f"'sha256-{digest}'" for digest in scripts)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def sha256(script: str) -> str:
    """Return the hash of a script as a policy names it: of its UTF-8, in base64."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


@cache
def plotly_bundle() -> Bundle:
    """Return plotly's bundle from the installed package."""
    script = importlib.resources.files("plotly").joinpath("package_data/plotly.min.js").read_text(encoding="utf-8")
    return Bundle(deflated(script), sha256(script))


def own_file(name: str) -> str:
    """Return the text of a script or style sheet of the page's own."""
    folder = importlib.resources.files("rlhf_cli.report.page").joinpath("static")
    return folder.joinpath(name).read_text(encoding="utf-8")
