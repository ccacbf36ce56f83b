"""What a model, a data set, a configuration or a folder's name wrote is text on the page, wherever it stands."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from rlhf_cli.display.page.page_content import script_json
from tests.display.page.opened_page import OpenedPage
from tests.display.page.reported_runs import write_report, write_reported
from tests.support.logged_runs import configured, write_run

ATTACK = (
    "</script><script>window.stolen=1</script><img src=https://evil.example/i onerror=window.stolen=1>"
    "<a href='https://evil.example/a'>go</a><svg onload=window.stolen=1>'\" %{x} {{ 7 * 7 }} <!-- \u2028 \ud800"
)
NAME = "<a href='x:'>n<img src=x onerror=window.stolen=1>%{x}"
"""The same without a slash and a surrogate, for names of rewards and folders."""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / NAME
    text = ATTACK.encode("utf-8", errors="replace").decode()
    runs = write_reported(folder, text=text, prompt=text, said=text)
    config = configured(
        0.9, 7, model={"name": ATTACK.replace("\ud800", "")}, rewards={NAME: {"fn": NAME, "weight": 1.0}}
    )
    curves = {f"rewards/{NAME}/mean": [0.1, 0.2], f"rewards/correlation/{NAME}/{NAME}": [0.1, 0.3], "loss": [1.0, 2.0]}
    runs.append(write_run(folder / "other", config, curves, reason=text, provenance={"command": text, "git": text}))
    (runs[0].path / "eval").mkdir()
    (runs[0].path / "eval" / f"{NAME}.json").write_text(json.dumps({"name": ATTACK, "data": ATTACK}))
    (runs[0].path / "completions" / "completions_00003.parquet").write_text(text)
    (folder / "broken").mkdir()
    (folder / "broken" / "config.yaml").write_text(f"[{NAME}")
    return write_report(folder, folder / "report.html")


@pytest.mark.whole
def test_no_script_of_theirs_runs_and_no_address_of_theirs_is_asked(chromium: Any, file: Path) -> None:
    page = OpenedPage(chromium, file)
    page.eval("for (const one of document.querySelectorAll('details')) one.open = true")
    for plot in page.tab.locator(".plot").all()[:2]:
        plot.hover()
    assert page.eval("window.stolen") is None
    assert page.complaints == []  # what a policy stops is a complaint, too
    assert page.requests == []
    assert page.tab.locator("img, iframe, object, embed").count() == 0
    assert page.eval("[...document.querySelectorAll('[href], [src]')].map((one) => one.getAttribute('href')"
        " || one.getAttribute('src')).filter((to) => !/^(#|\\.|data:,)/.test(to))") == []  # fmt: skip
    shown = page.tab.locator("body").inner_text()
    assert shown.count("<script>window.stolen=1</script>") > 10
    assert "{{ 7 * 7 }}" in shown


def test_negative_control_the_policy_stops_a_script_that_got_in(chromium: Any, file: Path) -> None:
    planted = file.with_name("planted.html")
    html = re.sub(r'(id="plotly-deflated">)[^<]+', r"\1", file.read_text(encoding="utf-8"))  # without it, it is quick
    planted.write_text(
        html.replace("<main>", "<main><script>window.stolen=1</script><img src=https://evil.example/i>", 1)
    )
    page = OpenedPage(chromium, planted, is_drawn=False)
    assert page.eval("window.stolen") is None
    assert len(page.complaints) == 2
    assert all("Content Security Policy" in said for said in page.complaints)


def test_json_cannot_end_its_element_and_comes_back_as_it_was() -> None:
    texts = ["</script>", "<!--", "<script", "\u2028\u2029", "&lt;", 'a"b\\c', "\U0001f600"]
    written = script_json(texts)
    assert not set("<>&\u2028\u2029") & set(written)
    assert json.loads(written) == texts


def test_no_secret_is_on_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of a run were cleaned when they were written; of runs from elsewhere the page does it itself."""
    monkeypatch.setenv("MY_API_KEY", "very-secret-0815")
    said = "very-secret-0815 and hf_abcdefghijklmnopqrstuvwxyz and very-secret-0815"
    # Cut after 2000 characters, the second one would be half a secret, which no redaction recognises.
    text = "very-secret-0815 ".ljust(1990, "x") + "very-secret-0815"
    write_reported(tmp_path / "sweep", text=text, prompt=said, said=said)
    folder = (tmp_path / "sweep").rename(tmp_path / "sweep\udce9")  # a byte that is no UTF-8
    html = write_report(folder, tmp_path / "report.html").read_text(encoding="utf-8")
    assert "very-sec" not in html
    assert "***" in html
