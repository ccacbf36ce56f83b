"""Runs that never stopped, copies of them as a kill leaves them, and what both ended with."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet
import torch
from safetensors.torch import load_file

from rlhf_cli.cli import main
from rlhf_cli.runs.metrics_file import read_metrics
from rlhf_cli.runs.run_folder import RunFolder, checkpoints_in
from rlhf_cli.tables.metrics import is_of_the_clock
from tests.support.small_runs import SMALL

WINDOWS = [
    *(*SMALL, "data.args.num_rows=5", "trainer.args.per_device_train_batch_size=4", "trainer.args.num_generations=4"),
    *("trainer.args.steps_per_generation=4", "trainer.args.num_iterations=2"),
    *("trainer.args.gradient_accumulation_steps=2", "trainer.args.max_steps=8"),
    *("trainer.args.save_steps=1", "trainer.args.save_total_limit=null"),
]
"""Four prompts a window, eight micro-batches a window, two a step: an epoch, of four of five rows, is steps 1 to 4."""


def cut(run: RunFolder, step: int, copy: Path) -> RunFolder:
    """A copy of a run as it lay there when it was killed after the checkpoint of `step`."""
    folder = RunFolder(copy)
    shutil.copytree(run.path, folder.path, ignore=shutil.ignore_patterns("model"))
    for later, path in checkpoints_in(folder.checkpoints):
        if later > step:
            shutil.rmtree(path)
    folder.status.write_text(json.dumps({**json.loads(folder.status.read_text()), "state": "failed"}))
    return folder


def weights(folder: RunFolder) -> dict[str, torch.Tensor]:
    (file,) = folder.model.glob("*model.safetensors")  # or an adapter's
    return load_file(file)


def is_same(one: RunFolder, other: RunFolder) -> bool:
    """Whether two finished runs have the same model, to the last bit."""
    theirs = weights(other)
    return all(torch.equal(tensor, theirs[name]) for name, tensor in weights(one).items())


def events(folder: RunFolder) -> list[dict[str, Any]]:
    """What was logged, without times; the last line is about one call and not about the run."""
    logged = [event for event in read_metrics(folder.metrics) if "train_loss" not in event]
    return [{name: value for name, value in event.items() if not is_of_the_clock(name)} for event in logged]


def table(folder: RunFolder, step: int) -> dict[str, list[Any]]:
    return pyarrow.parquet.read_table(folder.path / "completions" / f"completions_{step:05d}.parquet").to_pydict()


def goes_on_as(never_stopped: RunFolder, step: int, copy: Path) -> None:
    folder = cut(never_stopped, step, copy)
    assert main(["resume", str(folder.path)]) == 0
    # As text: NaN is not equal to itself.
    assert json.dumps(events(folder)) == json.dumps(events(never_stopped))
    assert is_same(folder, never_stopped)
