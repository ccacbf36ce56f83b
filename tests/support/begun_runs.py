"""Runs that were begun and stand at a step, made without training: what `rlhf resume` looks at before torch."""

from __future__ import annotations

import json
from pathlib import Path

from rlhf_cli.launch.freeze import create_run
from rlhf_cli.plan.preflight import preflight
from rlhf_cli.plan.prepare import prepare
from rlhf_cli.runs.checkpoint_folders import write_manifest
from rlhf_cli.runs.provenance import add_to_provenance
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_status import update_status
from tests.support.small_runs import SMALL

STATE_FILES = ("optimizer.pt", "scheduler.pt", "rng_state.pth", "rollout-rank0.pt", "trainer_state.json")


def begun(*words: str, step: int = 3, state: str = "failed", name: str = "one") -> RunFolder:
    """A run of the small experiment in the current folder, as it lies there when it ended in `state` at `step`."""
    prepared = prepare([*SMALL, f"run.name={name}", *words])
    plan = preflight(prepared.experiment, prepared.composed)
    folder = create_run(prepared.experiment, prepared.composed, files=plan.files)
    add_to_provenance(folder, world_size=1)
    update_status(folder, state=state, step=step, max_steps=step)
    if step:
        checkpoint_of(folder, step)
    return folder


def checkpoint_of(folder: RunFolder, step: int, *, without: tuple[str, ...] = ()) -> Path:
    """A checkpoint with the names of everything that a run needs; a manifest that agrees with what is there."""
    checkpoint = folder.checkpoints / f"checkpoint-{step}"
    checkpoint.mkdir(parents=True)
    for name in STATE_FILES:
        if name not in without:
            (checkpoint / name).write_text(json.dumps({"global_step": step}))
    write_manifest(checkpoint)
    return checkpoint
