"""The studies' own scripts: what they write beside a picture holds every seed's numbers."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import pytest

STUDIES = Path(__file__).parents[2] / "scripts" / "studies"


def test_every_seed_has_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(STUDIES))
    from seeds import SEEDS, write_numbers

    monkeypatch.delitem(sys.modules, "seeds")
    found = {label: [{"goal": seed / 3, "area": -1.0} for seed in SEEDS] for label in ("naive", "gate, then 1")}
    write_numbers(tmp_path / "weights.svg", "condition", found)
    with (tmp_path / "weights.csv").open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [(row["condition"], row["seed"]) for row in rows] == [(one, str(seed)) for one in found for seed in SEEDS]
    assert float(rows[7]["goal"]) == 7 / 3, "to the last digit"


@pytest.mark.parametrize("page", sorted(file.stem for file in STUDIES.glob("*.py") if "EXPERIMENT" in file.read_text()))
def test_every_study_writes_them(page: str) -> None:
    assert "write_numbers(arguments.picture" in (STUDIES / f"{page}.py").read_text()
    assert (STUDIES.parents[1] / "docs" / "reference" / "studies" / f"{page}.md").is_file()
