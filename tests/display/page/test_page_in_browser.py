"""The report as its reader has it: opened from a disk in a browser, on a screen, on a telephone, on paper."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.display.page.opened_page import SCREEN, OpenedPage
from tests.display.page.reported_runs import STEPS, write_report, write_reported
from tests.support.logged_runs import configured, write_run

pytestmark = pytest.mark.whole

SECTIONS = 9


_TOOLBARS = "[...document.querySelectorAll('.modebar')].filter((at) => at.getBoundingClientRect().height > 0).length"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "sweep"
    write_reported(folder, text="\U0001f600xy")
    return write_report(folder, folder / "report.html")


@pytest.fixture(scope="module")
def shared(chromium: Any, file: Path) -> OpenedPage:
    return OpenedPage(chromium, file)


@pytest.fixture
def page(shared: OpenedPage) -> OpenedPage:
    """The page as it is at first, with every setting shown."""
    shared.eval("for (const one of document.querySelectorAll('.chip[aria-pressed=false]')) one.click()")
    return shared


def test_it_opens_without_a_complaint_and_asks_nothing_of_any_network(page: OpenedPage) -> None:
    assert page.complaints == []
    assert page.requests == []
    assert page.tab.locator("section").count() == SECTIONS
    assert page.tab.locator("#no-plots").is_hidden()


def test_a_setting_that_is_switched_off_is_gone_from_every_plot_and_answer(page: OpenedPage) -> None:
    means, runs, answers = page.drawn("settings"), page.drawn("runs"), page.tab.locator("#answers .answer")
    assert sum(1 in places for places in means.values()) == 6  # two rewards, a share, loss, KL and length
    assert answers.count() == 4
    page.tab.locator("[data-setting='1']").click()
    assert page.drawn("settings") == {plot: [place for place in places if place != 1] for plot, places in means.items()}
    assert all(not {2, 3} & set(places) for places in page.drawn("runs").values())
    assert answers.count() == 2
    page.tab.locator("[data-setting='1']").click()
    assert (page.drawn("settings"), page.drawn("runs")) == (means, runs)
    page.tab.locator("[data-setting='1']").click(modifiers=["Shift"])  # this one alone
    assert answers.count() == 2


def test_completions_say_what_each_reward_made_of_them(page: OpenedPage) -> None:
    assert page.tab.locator("#answers .prompt").first.inner_text() == f"2+2={STEPS}"
    answer = page.tab.locator("#answers .answer").first
    assert answer.locator(".text").inner_text() == "\U0001f600xy good"
    assert answer.locator("tbody tr").all_inner_texts() == ["correct\t1\t1", "brevity\t0.5\t0.25", "total\t\t1.25"]
    page.eval("""() => { const at = document.querySelector('#answers input'); at.value = 0;
        at.dispatchEvent(new Event('input')); }""")
    assert page.tab.locator("#answers .prompt").first.inner_text() == "2+2=1"
    assert "gate closed by correct" in page.tab.locator("#answers tr.closed").first.inner_text()


def test_a_telephone_has_nothing_beside_its_screen(page: OpenedPage) -> None:
    page.tab.set_viewport_size({"width": 400, "height": 800})
    page.eval("for (const one of document.querySelectorAll('details')) one.open = true")
    assert page.overflow() <= 0
    assert page.eval(_TOOLBARS) == 0, "plotly's buttons lie over the curves"
    page.tab.set_viewport_size(SCREEN)
    assert page.eval(_TOOLBARS) > 0
    page.eval("for (const one of document.querySelectorAll('details')) one.open = false")


def test_a_band_has_a_gap_where_all_seeds_are_equal(chromium: Any, tmp_path: Path) -> None:
    """Equal seeds have no interval. The outline goes forth below each piece and back above it, over no other step."""
    curves = [[1.0, 2.0, 0.0, 0.0, 3.0, 3.0], [2.0, 4.0, 0.0, 0.0, 1.0, 1.0], [3.0, 3.0, 0.0, 0.0, 2.0, 5.0]]
    for seed, curve in enumerate(curves):
        write_run(tmp_path / f"{seed}", configured(0.1, seed), {"loss": curve})
    page = OpenedPage(chromium, write_report(tmp_path, tmp_path / "report.html"))
    bands = page.eval("""() => [...document.querySelectorAll('.plots .plot')].flatMap((at) => at.data)
        .filter((one) => one.fill).map((one) => [...one.x])""")
    assert bands == [[1, 2, 2, 1, None, 5, 6, 6, 5, None]]
    assert page.complaints == []
