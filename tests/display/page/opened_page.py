"""Opens a report in a browser and remembers what it did that it should not: errors, requests, dialogs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

SCREEN = {"width": 1280, "height": 900}
_PLACES = {"runs": "one.meta.runs || []", "settings": "one.meta.setting === undefined ? [] : [one.meta.setting]"}


class OpenedPage:
    """A report in a tab. `complaints` holds console errors and exceptions, `requests` all addresses but its own."""

    def __init__(self, browser: Any, file: Path, *, is_drawn: bool = True) -> None:
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.tab = browser.new_page(viewport=SCREEN)
        self.tab.on("console", lambda said: self.complaints.append(said.text) if said.type != "log" else None)
        self.tab.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.tab.on("dialog", lambda dialog: self._dialog(dialog))
        self.tab.on("request", lambda request: self._request(request.url, file))
        self.tab.goto(file.as_uri())
        if is_drawn:
            self.tab.wait_for_selector("html[data-drawn=all]", state="attached", timeout=60_000)

    def _dialog(self, dialog: Any) -> None:
        self.complaints.append(f"dialog {dialog.message}")
        dialog.dismiss()

    def _request(self, url: str, file: Path) -> None:
        if url != file.as_uri() and not url.startswith(("data:", "blob:")):
            self.requests.append(url)

    def eval(self, script: str) -> Any:
        """Return what a script of the test's own, which no policy stops, evaluates to."""
        return self.tab.evaluate(script)

    def drawn(self, what: str) -> dict[str, list[int]]:
        """Return the plot of curves -> the places of `runs` whose lines, or of `settings` whose means, plotly holds."""
        found: dict[str, list[int]] = self.eval(
            """() => Object.fromEntries([...document.querySelectorAll('.plots .plot')].map((at) => [at.id,
                 at.data.filter((one) => one.meta).flatMap((one) => WHAT).sort()]))""".replace("WHAT", _PLACES[what])
        )
        return found

    def overflow(self) -> int:
        """Return by how many pixels the page is wider than its window."""
        return self.eval("document.documentElement.scrollWidth - document.documentElement.clientWidth")
