"""Test the GPU benchmark's lower bounds against values computed by hand."""

from __future__ import annotations

from dataclasses import replace

from scripts.bench.gpu import Floor, table
from scripts.bench.step_sides import Step, Taken


def cells(lines: list[str]) -> dict[str, list[str]]:
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    return {row[0]: row[1:] for row in rows}


def test_bounds_and_ratios_equal_those_by_hand():
    """1,016 real tokens: 16 of answers, and 1,000 of prompts, 125 if those of a group are counted once. With 1.6e9
    parameters in the body, 0.4e9 in the head and 6e12 FLOP/s: 6 * (1.6e9 * 141 + 0.4e9 * 16) / 6e12 = 0.232 s, and two
    thirds of it if the weights are frozen below an adapter. In bf16 4e9 bytes are read for each of the 10 tokens of the
    longest answer, at 8e9 a second: 5 s. 16 tokens of answers in 8 s are 2 a second.
    """
    step = Step("", "grpo", [10, 6], device="cuda")
    ours = Taken(step_s=8, generation_s=6, peak_mb=50, slots=900, phases={"generation": 6, "forward": 1})
    stock = Taken(step_s=32, generation_s=12, peak_mb=100, slots=3000, tokens=1016, phases={"generation": 12})
    took, limits = {"ours": [ours], "stock": [stock]}, Floor(flop_s=6e12, byte_s=8e9)
    parameters = (16 * 10**8, 4 * 10**8)
    found = cells(table(took, step, parameters, limits))
    assert found["tokens of answers a second"] == ["2", "0.5", "4.000", ""]
    assert found["step, s"] == ["8", "32", "0.250", ""]
    assert found["generation, s"] == ["6", "12", "0.500", "5"]
    assert found["update, s"] == ["2", "20", "0.100", "0.232"]
    assert cells(table(took, replace(step, lora=True), parameters, limits))["update, s"][3] == "0.155"
    assert found["peak memory, MiB"] == ["50", "100", "0.500", ""]
    assert found["share of forward"][:2] == ["0.125", "0"]
    assert found["share of the rest"][:2] == ["0.125", "0.625"]
