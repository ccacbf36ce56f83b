"""Two ranks whose rows go packed end with the weights of two ranks that send what TRL sends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from rlhf_cli.runs.metrics_file import read_metrics, series
from rlhf_cli.runs.run_folder import RunFolder, read_json
from tests.support.small_runs import PPO_SMALL, SMALL

pytestmark = pytest.mark.processes
WORDS = [
    "launch.processes=2",
    "trainer.args.per_device_train_batch_size=4",
    "trainer.args.gradient_accumulation_steps=2",
]
HALF_ALIKE = (
    "def alike(prompts, completions, **_):\n    return [len(c) * (len(p) % 2) for p, c in zip(prompts, completions)]\n"
)
"""Some ranks have nothing to learn from a micro-batch, and wait for the others' gradients all the same."""


def weights(workplace: Path, name: str, *words: str) -> tuple[dict[str, torch.Tensor], RunFolder]:
    command = [sys.executable, "-m", "rlhf_cli", "train", *SMALL, *WORDS, *words, f"run.name={name}"]
    done = subprocess.run(command, cwd=workplace, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    folder = RunFolder(workplace / "runs" / "quickstart" / name)
    return load_file(folder.path / "model" / "model.safetensors"), folder


def test_they_end_alike(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(HALF_ALIKE)
    words = [*PPO_SMALL, "++rewards.alike.fn=./mine.py:alike"]
    packed, folder = weights(tmp_path, "packed", *words)
    plain, other = weights(tmp_path, "plain", *words, "trainer.passes=plain")
    assert read_json(folder.provenance)["passes"] == "packed"
    assert read_json(other.provenance)["passes"] == "plain: as asked"
    for name, one in packed.items():
        torch.testing.assert_close(one, plain[name], atol=1e-5, rtol=0, msg=name)
    first, second = (series(read_metrics(one.metrics), "grad_norm")[1] for one in (folder, other))
    assert first == pytest.approx(second, rel=1e-4)
