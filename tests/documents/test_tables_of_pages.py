"""Test that tables of the documents equal those of the code: phases, strategies, sections of a report, files."""

from __future__ import annotations

import re

from rlhf_cli.runs.heartbeat import _KEYS
from rlhf_cli.runs.run_folder import SWEEP, RunFolder, _Below
from rlhf_cli.sweeps.search import JOURNAL
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


def test_sections_of_a_report() -> None:
    template = (ROOT / "rlhf_cli/display/page/templates/page.html.jinja").read_text(encoding="utf-8")
    titles = re.findall(r"<h2[^>]*>(?:{{ \")?([\w, ]+)", template)
    table = (PAGES / "compare.md").read_text(encoding="utf-8").partition("| section | what it holds |")[2]
    shown = re.findall(r"^\| ([\w, ]+) \|", table, re.MULTILINE)
    assert list(map(str.lower, shown)) == list(map(str.lower, titles))


def test_files_of_a_run_and_of_a_sweep() -> None:
    text = (ROOT / "docs/reference/metrics.md").read_text(encoding="utf-8").partition("## The files of a run")[2]
    named = set(re.findall(r"`([\w.-]+)/?`", text.partition("\n## ")[0]))
    of_a_run = {value.name for value in vars(RunFolder).values() if isinstance(value, _Below)}
    assert {*of_a_run, SWEEP, JOURNAL} <= named


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
