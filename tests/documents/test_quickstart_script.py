"""Run docs/quickstart.py, the quickstart from Python."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

from tests.documents.quoted_commands import ROOT

SCRIPT = ROOT / "docs" / "quickstart.py"
pytestmark = pytest.mark.usefixtures("place")


def test_it_has_at_most_fifty_lines() -> None:
    assert len(SCRIPT.read_text(encoding="utf-8").splitlines()) <= 50


@pytest.mark.slow
def test_it_trains_four_runs_and_prints_a_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(SCRIPT))["main"](steps=2, root=tmp_path)
    states = [json.loads(file.read_text())["state"] for file in tmp_path.glob("quickstart/*/status.json")]
    assert states == ["finished"] * 4
    printed = capsys.readouterr().out
    assert "rewards.brevity.weight" in printed
    assert "correct between 0 and 0.5 (2 seeds)" in printed
