"""Says in the site where a link of a document leads that leads out of docs/: to a test, a script, a file of conf/.

On a disk, and where the repository is browsed, such a link can be followed; the site has the documents alone.
"""

from __future__ import annotations

import posixpath
import re

_LINK = re.compile(r"\[(?P<words>[^\]]+)\]\((?P<target>(?:\.\./)+[^)\s]+)\)")


def on_page_markdown(markdown: str, *, page: object, **_: object) -> str:
    """Put `words (path)` in the place of such links; MkDocs calls it for every page, with the page's text."""
    folder = posixpath.dirname(page.file.src_uri)  # type: ignore[attr-defined]

    def told(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join("docs", folder, link["target"]))
        return link[0] if target.startswith("docs/") else f"{link['words']} (`{target}`)"

    return _LINK.sub(told, markdown)
