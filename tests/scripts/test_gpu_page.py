"""Test the page of `make bench-gpu` with commands replaced by stand-ins."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scripts.bench import gpu_page
from scripts.bench.gpu import TINY

ROOT = Path(__file__).parents[2]
NO_GPU = {"where": "launch.rollout (command line)", "what": "launch.rollout=vllm needs a GPU"}


class Commands:
    """Stand-ins for the page's commands; `broken` is a word of the failing one, `problem` the answer of check."""

    def __init__(self) -> None:
        self.broken, self.problem = "", NO_GPU

    def __call__(self, command: list[str], cwd: Path, **_: Any) -> subprocess.CompletedProcess[str]:
        code, said = self.answer(command, Path(cwd))
        if self.broken and self.broken in command:
            return subprocess.CompletedProcess(command, 3, "", "Traceback:\nit broke")
        return subprocess.CompletedProcess(command, code, said, "")

    def answer(self, command: list[str], place: Path) -> tuple[int, str]:
        if "check" in command:
            is_vllm = any(word.startswith("launch.rollout=vllm") for word in command)
            return (2, json.dumps({"problems": [self.problem]})) if is_vllm else (0, "{}")
        if "train" in command:
            folder = place / "runs" / "grpo" / command[-1].removeprefix("run.name=")
            folder.mkdir(parents=True)
            line = {"completions/mean_length": 5.0, "time/elapsed_s": 2.0, "time/share/generation": 0.75}
            (folder / "metrics.jsonl").write_text(f"{json.dumps(line | {'time/elapsed_s': 99})}\n{json.dumps(line)}\n")
        if "--one" in command:
            plan = {"moments": [{"what": "learning from 8 rows", "total_bytes": 5}]}
            sizes = {"generation": 50_000_000, "training": 100_000_000}
            return 0, json.dumps({"name": "GRPO", "measured": sizes, "estimated": sizes, "plan": plan})
        return 0, "GPU  none" if "doctor" in command else "| | ours | TRL 1.16 |\n|---|---|---|\n| step, s | 1 | 2 |"


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> Commands:
    stand_in = Commands()
    monkeypatch.delenv("ACCELERATE_TORCH_DEVICE", raising=False)
    monkeypatch.setattr(gpu_page.subprocess, "run", stand_in)
    monkeypatch.setattr(gpu_page, "make", lambda place, _: place.mkdir())
    monkeypatch.setattr(gpu_page, "make_place", lambda _: None)
    monkeypatch.setattr(Path, "symlink_to", lambda *_: None)
    return stand_in


def printed(capsys: pytest.CaptureFixture[str]) -> str:
    page = capsys.readouterr().out
    assert all(f"## {title}" in page for title in gpu_page.PARTS)
    assert max(map(len, page.splitlines())) <= gpu_page.WIDTH
    return page


def cells(page: str, first: str) -> list[str]:
    (line,) = (line for line in page.splitlines() if line.startswith(f"| {first} "))
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def test_every_part_is_on_the_page(commands: Commands, capsys: pytest.CaptureFixture[str]) -> None:
    """16 answers of 5 tokens in 2 s are 40 tokens a second; the first step is not counted."""
    assert gpu_page.page(TINY) == 0
    page = printed(capsys)
    assert "GPU  none" in page
    assert cells(page, "step, s") == ["1", "2"]
    assert cells(page, "tokens of answers a second") == ["40"]
    assert cells(page, "share of generation") == ["0.75"]
    assert cells(page, "share of the rest") == ["0.25"]
    assert cells(page, "GRPO") == ["50", "50", "100", "100", "+0.0%", "learning from 8 rows"]
    assert page.count(": not measured here: launch.rollout=vllm needs a GPU\n") == 2
    assert "pip install 'vllm" in page


@pytest.mark.parametrize(
    ("broken", "title"),
    [
        ("doctor", "What is there"),
        ("scripts.bench.gpu", "A step"),
        ("check", "What generates"),
        ("train", "What generates"),
        ("--one", "Memory, estimated and measured"),
    ],
)
def test_a_part_that_fails_says_so_and_the_others_are_printed(
    commands: Commands, capsys: pytest.CaptureFixture[str], broken: str, title: str
) -> None:
    commands.broken = broken
    assert gpu_page.page(TINY) == 1
    page = printed(capsys)
    assert page.endswith(f"\nfailed: {title}\n")
    assert "it broke" in page
    assert "GPU  none" in page or broken == "doctor"


def test_a_mistake_of_the_page_is_not_a_way_that_cannot_run(
    commands: Commands, capsys: pytest.CaptureFixture[str]
) -> None:
    commands.problem = {"where": "trainer.args (command line)", "what": "there is no such argument"}
    assert gpu_page.page(TINY) == 1
    page = printed(capsys)
    assert "failed: there is no such argument: trainer.args (command line)" in " ".join(page.split())
    assert "not measured here" not in page


@pytest.mark.slow
@pytest.mark.parametrize("flags", [[], ["--pretended"]])
def test_the_page_is_whole_without_a_gpu(flags: list[str]) -> None:
    """The page has the numbers of a CPU and says why the rest is missing."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "scripts.bench.gpu_page", *flags]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    page = done.stdout
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
