"""One rank without a model: a frozen run, and a trainer whose work the test defines."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rlhf_cli.runs.checkpoint_folders import write_manifest
from rlhf_cli.runs.run_folder import RunFolder


class FakeTrainer:
    """The parts of a trainer that a rank uses. It does `work` instead of training, and ends at step `ends_at`."""

    def __init__(self, work: Callable[[], None], *, ends_at: int = 3, max_steps: int = 3) -> None:
        self.work, self.ends_at = work, ends_at
        self.state = SimpleNamespace(global_step=0, max_steps=max_steps)
        self.args = SimpleNamespace(n_gpu=0)
        of_one = {"num_processes": 1, "distributed_type": SimpleNamespace(value="NO"), "device": "cpu"}
        nothing = {"mixed_precision": "no", "state": SimpleNamespace(), "wait_for_everyone": lambda: None}
        self.accelerator = SimpleNamespace(**of_one, **nothing)
        self.model = SimpleNamespace(
            parameters=lambda: [SimpleNamespace(numel=lambda: 7)],
            config=SimpleNamespace(_name_or_path="somebody/model"),
        )
        self.train_dataset = [{}] * 5
        self.closed = 0
        stack = SimpleNamespace(close=self._close)
        self.extensions = SimpleNamespace(rewards=SimpleNamespace(stack=stack), left_out={})
        self.slow_paths: Callable[[], dict[str, str]] = dict
        self.callbacks: list[Any] = []
        self.began_at: str | None = "not at all"

    def _close(self) -> None:
        self.closed += 1

    def add_callback(self, callback: Any) -> None:
        self.callbacks.append(type(callback).__name__)

    def remove_callback(self, callback: Any) -> None:
        pass

    def train(self, resume_from_checkpoint: str | None) -> None:
        self.began_at = resume_from_checkpoint
        self.work()
        self.state.global_step = self.ends_at

    def save_model(self, path: str) -> None:
        Path(path).mkdir()
        (Path(path) / "weights").write_text("of step " + str(self.state.global_step))


def raising(error: BaseException) -> Callable[[], None]:
    """Work that fails; the function's name is what a traceback has to show."""

    def fail_in_training() -> None:
        raise error

    return fail_in_training


def write_checkpoint(folder: RunFolder, step: int) -> Path:
    """Write a checkpoint that verifies but cannot be loaded."""
    checkpoint = folder.checkpoints / f"checkpoint-{step}"
    checkpoint.mkdir(parents=True)
    (checkpoint / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    write_manifest(checkpoint)
    return checkpoint
