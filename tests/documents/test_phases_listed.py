"""docs/how-to/profile.md lists the phases that the time is divided into, as the table of the code has them."""

from __future__ import annotations

import re
from pathlib import Path

from rlhf_cli.runs.phase_clock import _KEYS
from rlhf_cli.tables.metrics import PHASES, WAITING

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "profile.md"


def test_the_page_has_every_phase_in_the_order_of_a_step() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.+) \| (.+) \|$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert [row[:2] for row in rows] == [(row.key, row.label) for row in PHASES.values()]
    assert all(meaning for *_, meaning in rows)


def test_every_phase_is_one_that_a_heartbeat_names_or_waiting() -> None:
    assert set(PHASES) == {*_KEYS.values(), WAITING}
