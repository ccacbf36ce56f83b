"""A guard that sees something on one rank alone stops both, at one place, and the user is told once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rlhf_cli.runs.run_folder import RunFolder, read_json
from rlhf_cli.runs.run_status import read_status
from tests.support.small_runs import SMALL

OWN = """
import os
import torch
from trl import GRPOTrainer

class Faulty(GRPOTrainer):
    '''The second rank's loss is infinite in the second step, by a constant: its gradient is as good as the first's.'''

    def _compute_loss(self, model, inputs):
        is_bad = os.environ["RANK"] == "1" and self.state.global_step == 1
        return super()._compute_loss(model, inputs) + (torch.inf if is_bad else 0.0)
"""


@pytest.mark.processes
@pytest.mark.fault(37)
def test_a_bad_loss_on_the_second_rank(workplace: Path) -> None:
    """Gradients are averaged over ranks and losses are not: by its own numbers the first rank would go on."""
    (workplace / "mine.py").write_text(OWN)
    words = ["launch.processes=2", "trainer.args.per_device_train_batch_size=4", "trainer.class=./mine.py:Faulty"]
    command = [sys.executable, "-m", "rlhf_cli", "train", *SMALL, *words, "trainer.args.save_steps=1", "run.name=two"]
    ended = subprocess.run(command, cwd=workplace, capture_output=True, text=True, timeout=300, check=False)
    folder = RunFolder(workplace / "runs" / "quickstart" / "two")
    status = read_status(folder)
    assert (ended.returncode, status.state, status.step, status.last_checkpoint) == (1, "failed", 1, "checkpoint-1")
    assert ended.stderr.count("the loss is not finite: stopped before optimizer step 2") == 1
    assert "goes on from checkpoint-1, the last good checkpoint" in ended.stderr
    assert "Traceback" not in ended.stderr
    failures = [read_json(file) for file in sorted(folder.path.glob("failure-rank*.json"))]
    assert [failure["is_by_guard"] for failure in failures] == [True] * len(failures)
    assert failures
    batches = [json.loads(file.read_text()) for file in sorted((folder.path / "non_finite").iterdir())]
    assert [batch["micro_batches"][0]["loss"] == "inf" for batch in batches] == [False, True]  # each rank its own
