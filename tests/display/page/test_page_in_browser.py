"""The report as its reader has it: opened from a disk in a browser, on a screen, on a telephone, on paper."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlhf_cli.display.page.page_content import write_report
from tests.display.page.opened_page import SCREEN, OpenedPage
from tests.display.page.reported_runs import STEPS, write_reported

SECTIONS = 12


_TOOLBARS = "[...document.querySelectorAll('.modebar')].filter((at) => at.getBoundingClientRect().height > 0).length"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "sweep"
    write_reported(folder, text="\U0001f600xy")
    return write_report([folder], folder / "report.html")


@pytest.fixture(scope="module")
def shared(chromium: Any, file: Path) -> OpenedPage:
    return OpenedPage(chromium, file)


@pytest.fixture
def page(shared: OpenedPage) -> OpenedPage:
    """The page as it is at first, with every run shown."""
    shared.eval("document.getElementById('show-all').click()")
    return shared


def test_it_opens_without_a_complaint_and_asks_nothing_of_any_network(page: OpenedPage) -> None:
    assert page.complaints == []
    assert page.requests == []
    assert page.tab.locator("section").count() == SECTIONS
    assert page.tab.locator("#no-plots").is_hidden()


def test_a_run_that_is_switched_off_is_gone_from_every_plot(page: OpenedPage) -> None:
    before = page.drawn("runs")
    assert sum(1 in runs for runs in before.values()) == 7  # it logged seven metrics
    page.tab.locator("#single-runs summary").click()
    page.tab.locator("[data-run='1']").click()
    assert page.drawn("runs") == {plot: [run for run in runs if run != 1] for plot, runs in before.items()}
    page.tab.locator("[data-run='1']").click()
    assert page.drawn("runs") == before
    page.tab.locator("#single-runs summary").click()


def test_completions_say_what_each_reward_made_of_them(page: OpenedPage) -> None:
    answer = page.tab.locator("#beside .answer").first
    assert page.tab.locator("#beside .prompt").first.inner_text() == f"2+2={STEPS}"
    # The first part is one character, though it takes two of JavaScript's units.
    assert answer.locator(".part.gain").inner_text() == "\U0001f600"
    assert answer.locator(".part.loss").inner_text() == "xy"
    worst = page.tab.locator("#extremes .answer").nth(1)
    assert "gate closed by correct" in worst.locator("tr.closed").inner_text()
    page.eval("""() => { const at = document.querySelector('#beside input'); at.value = 0;
        at.dispatchEvent(new Event('input')); }""")
    assert page.tab.locator("#beside .prompt").first.inner_text() == "2+2=1"


def test_a_telephone_has_nothing_beside_its_screen(page: OpenedPage) -> None:
    page.tab.set_viewport_size({"width": 400, "height": 800})
    page.eval("for (const one of document.querySelectorAll('details')) one.open = true")
    assert page.overflow() <= 0
    assert page.eval(_TOOLBARS) == 0, "plotly's buttons lie over the curves"
    page.tab.set_viewport_size(SCREEN)
    assert page.eval(_TOOLBARS) > 0
    page.eval("for (const one of document.querySelectorAll('details')) one.open = false")
