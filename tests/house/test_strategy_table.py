"""docs/how-to/launch.md says of every strategy what tables/strategies.py says."""

from __future__ import annotations

from pathlib import Path

from rlhf_cli.tables.strategies import STRATEGIES

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "launch.md"


def test_the_page_is_the_table() -> None:
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.read_text().splitlines() if "|" in line
    ]
    head = next(row for row in rows if row[1:] == list(STRATEGIES))
    said = {
        row[0]: dict(zip(head[1:], row[1:], strict=True))
        for row in rows
        if len(row) == len(head) and row[1] in ("yes", "no")
    }
    refused = {name: {one.feature for one in row.conflicts} for name, row in STRATEGIES.items()}
    assert set().union(*refused.values()) <= set(said)
    for feature, answers in said.items():
        for name, answer in answers.items():
            assert answer in ("yes", "yes, read", "no"), (feature, name)
            assert (answer == "no") == (feature in refused[name]), (feature, name)
