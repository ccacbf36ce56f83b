"""Replace links out of docs/ on the site: to tests, scripts, files of conf/.

Such links work on a disk and in a repository browser, but the site has the documents alone.
"""

from __future__ import annotations

import posixpath
import re

_LINK = re.compile(r"\[(?P<words>[^\]]+)\]\((?P<target>(?:\.\./)+[^)\s]+)\)")


def on_page_markdown(markdown: str, *, page: object, **_: object) -> str:
    """Replace such links by `words (path)`; MkDocs calls this for every page."""
    folder = posixpath.dirname(page.file.src_uri)  # type: ignore[attr-defined]

    def told(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join("docs", folder, link["target"]))
        return link[0] if target.startswith("docs/") else f"{link['words']} (`{target}`)"

    return _LINK.sub(told, markdown)
