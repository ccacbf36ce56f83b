"""The GPU's benchmark on a CPU, as there is no GPU where tests run: its floors by hand, and that it runs whole."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.bench.gpu import Floor, table
from scripts.bench.step_sides import Step, Taken

ROOT = Path(__file__).parents[2]


def cells(lines: list[str]) -> dict[str, list[str]]:
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    return {row[0]: row[1:] for row in rows}


def test_floors_and_ratios_are_those_by_hand():
    """2e9 parameters, 1,000 real tokens, 6e12 FLOP/s: 6 * 2e9 * 1000 / 6e12 = 2 s. In bf16 4e9 bytes are read for
    each of the 10 tokens of the longest answer, at 8e9 a second: 5 s. 16 tokens of answers in 8 s are 2 a second.
    """
    step = Step("", "grpo", [10, 6], device="cuda")
    ours = Taken(step_s=8, generation_s=6, peak_mb=50, slots=900, phases={"generation": 6, "forward": 1})
    stock = Taken(step_s=32, generation_s=12, peak_mb=100, slots=3000, tokens=1000, phases={"generation": 12})
    found = cells(table({"ours": [ours], "stock": [stock]}, step, 2 * 10**9, Floor(flop_s=6e12, byte_s=8e9)))
    assert found["tokens of answers a second"] == ["2", "0.5", "4.000", ""]
    assert found["step, s"] == ["8", "32", "0.250", ""]
    assert found["generation, s"] == ["6", "12", "0.500", "5"]
    assert found["update, s"] == ["2", "20", "0.100", "2"]
    assert found["peak memory, MB"] == ["50", "100", "0.500", ""]
    assert found["share of forward"][:2] == ["0.125", "0"]
    assert found["share of the rest"][:2] == ["0.125", "0.625"]


@pytest.mark.slow
def test_it_runs_whole_with_toy_numbers():
    """Ours computes fewer slots than TRL, which pads; both learn from the same answers, and every share is one."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "scripts.bench.gpu", "--tiny", "--pairs", "1"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:] + done.stdout[-2000:]
    found = cells([line for line in done.stdout.splitlines() if line.startswith("|")])
    ours, stock = map(float, found["slots of the training pass"][:2])
    assert 0 < ours < stock
    assert all(0 < float(found[name][side]) < 1 for name in found if name.startswith("share of ") for side in (0, 1)
               if name != "share of log-probabilities")  # fmt: skip
