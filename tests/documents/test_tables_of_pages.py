"""Test that tables of the documents equal those of the code: phases of a step, strategies."""

from __future__ import annotations

import re

from rlhf_cli.runs.phase_clock import _KEYS
from rlhf_cli.tables.metrics import PHASES, WAITING
from rlhf_cli.tables.strategies import STRATEGIES
from tests.documents.quoted_commands import ROOT

PAGES = ROOT / "docs" / "how-to"


def test_phases_are_listed_in_order() -> None:
    text = (PAGES / "memory.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (.+) \| (.+) \|$", text, flags=re.MULTILINE)
    assert [row[:2] for row in rows] == list(PHASES.items())
    assert all(meaning for *_, meaning in rows)
    assert set(PHASES) == {*_KEYS.values(), WAITING}


def test_features_of_strategies() -> None:
    lines = (PAGES / "launch.md").read_text(encoding="utf-8").splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if "|" in line]
    head = next(row for row in rows if row[1:] == list(STRATEGIES))
    listed = {
        row[0]: dict(zip(head[1:], row[1:], strict=True))
        for row in rows
        if len(row) == len(head) and row[1] in ("yes", "no")
    }
    refused = {name: set(row.conflicts) for name, row in STRATEGIES.items()}
    assert set().union(*refused.values()) <= set(listed)
    for feature, answers in listed.items():
        for name, answer in answers.items():
            assert answer in ("yes", "yes, read", "no"), (feature, name)
            assert (answer == "no") == (feature in refused[name]), (feature, name)
