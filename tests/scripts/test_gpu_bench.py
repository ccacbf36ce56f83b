"""The GPU's benchmark on a CPU, as there is no GPU where tests run: its floors by hand."""

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
def test_the_page_is_whole_without_a_gpu():
    """What a CPU can do is measured, and of the rest it says why not."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "scripts.bench.gpu_page"]
    page = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout
    assert "failed" not in page
    by_itself, in_process, server = (
        line for line in page.splitlines() if line.startswith(("| the model", "| vLLM", "| a vLLM"))
    )
    assert float(by_itself.split("|")[2]) > 0
    for line, rollout in ((in_process, "vllm"), (server, "vllm_server")):
        assert f"not measured here: launch.rollout={rollout} needs a GPU" in line
    assert [line for line in page.splitlines() if line.startswith("| GRPO |")]
