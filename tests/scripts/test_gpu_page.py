"""Test `make bench-gpu`: its page, on commands that are pretended and slowly on this CPU, and its bounds by hand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scripts.bench import gpu_page
from scripts.bench.gpu import TINY, Floor, table
from scripts.bench.step_sides import Step, Taken

ROOT = Path(__file__).parents[2]


def cells(page: str, first: str) -> list[str]:
    (line,) = (line for line in page.splitlines() if line.startswith(f"| {first} "))
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def test_a_way_is_measured_without_its_first_step_or_the_page_says_why_not(tmp_path: Path, monkeypatch) -> None:
    """16 answers of 5 tokens in 2 s are 40 tokens a second."""
    problem = {"where": "launch.rollout (command line)", "what": "launch.rollout=vllm needs a GPU"}

    def run(command: list[str], cwd: Path, **_: Any) -> subprocess.CompletedProcess[str]:
        is_vllm = any(word.startswith("launch.rollout=vllm") for word in command)
        if "check" in command and is_vllm:
            return subprocess.CompletedProcess(command, 2, json.dumps({"problems": [problem]}), "")
        if "train" in command:
            folder = Path(cwd, "runs", "grpo", command[-1].removeprefix("run.name="))
            folder.mkdir(parents=True)
            line = {"completions/mean_length": 5.0, "time/elapsed_s": 2.0, "time/share/generation": 0.75}
            (folder / "metrics.jsonl").write_text(f"{json.dumps(line | {'time/elapsed_s': 99})}\n{json.dumps(line)}\n")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(gpu_page.subprocess, "run", run)
    monkeypatch.setattr(gpu_page, "make", lambda place, _: place.mkdir())
    page = gpu_page.ways(TINY)
    assert cells(page, "tokens of answers a second") == ["40"]
    assert cells(page, "share of generation") == ["0.75"]
    assert cells(page, "share of the rest") == ["0.25"]
    assert page.count(": not measured here: launch.rollout=vllm needs a GPU\n") == 2
    problem["where"] = "trainer.args (command line)"  # a mistake of the page's
    with pytest.raises(gpu_page.Failed, match="needs a GPU: trainer"):
        gpu_page.ways(TINY)


def test_a_part_that_fails_says_so_and_the_others_are_printed(monkeypatch, capsys) -> None:
    broken = subprocess.CompletedProcess(["x"], 3, "", "Traceback:\nit broke")
    parts = {"One": lambda _: gpu_page.output(broken), "Two": lambda _: "", "Three": lambda _: str(1 // 0)}
    monkeypatch.setattr(gpu_page, "PARTS", parts)
    assert gpu_page.page(TINY) == 1
    page = capsys.readouterr().out
    assert "failed, exit code 3:\nTraceback:\nit broke\n\n## Two\n" in page
    assert page.endswith("\nfailed: One, Three\n")


@pytest.mark.slow
@pytest.mark.parametrize("flags", [[], ["--pretended"]])
def test_the_page_is_whole_without_a_gpu(flags: list[str]) -> None:
    """The page has the numbers of a CPU and says why the rest is missing."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "scripts.bench.gpu_page", *flags]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    page = done.stdout
    assert all(f"## {title}" in page for title in gpu_page.PARTS)
    assert max(map(len, page.splitlines())) <= gpu_page.WIDTH
    assert "fail" not in page
    assert len(cells(page, "step, s")) == 4
    assert float(cells(page, "tokens of answers a second")[0]) > 0
    for way, rollout in (("vLLM in its process", "vllm"), ("a vLLM server", "vllm_server")):
        assert f"{way}: not measured here: launch.rollout={rollout} needs a GPU" in page
    if flags:
        assert "a pretended device has no memory" in page
    else:
        assert len(cells(page, "GRPO")) == 6


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
    found = "\n".join(table(took, step, parameters, limits))
    assert cells(found, "tokens of answers a second") == ["2", "0.5", "4.000", ""]
    assert cells(found, "step, s") == ["8", "32", "0.250", ""]
    assert cells(found, "generation, s") == ["6", "12", "0.500", "5"]
    assert cells(found, "update, s") == ["2", "20", "0.100", "0.232"]
    adapted = "\n".join(table(took, replace(step, lora=True), parameters, limits))
    assert cells(adapted, "update, s")[3] == "0.155"
    assert cells(found, "peak memory, MiB") == ["50", "100", "0.500", ""]
    assert cells(found, "share of forward")[:2] == ["0.125", "0"]
    assert cells(found, "share of the rest")[:2] == ["0.125", "0.625"]
