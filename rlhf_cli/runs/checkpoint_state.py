"""Check that a checkpoint holds all state needed for an exact resume; transformers silently continues without it."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

from rlhf_cli.errors import Prose, RunError
from rlhf_cli.runs.checkpoint_folders import MANIFEST

_STATE = {
    "the optimizer's state": ("optimizer.pt", "optimizer.bin", "optimizer*/", "global_step*/", "rank*-optimizer.pt"),
    "the learning rate's schedule": ("scheduler.pt",),
    "the state of the random numbers": ("rng_state*.pth",),
}
"""Maps part of the state -> the file names that transformers, FSDP and DeepSpeed give it; one match is enough."""


def missing_state(checkpoint: Path) -> list[str]:
    """Return which parts of the state a checkpoint lacks, judged by file names; [] if it has no manifest."""
    if not (checkpoint / MANIFEST).is_file():
        return []  # it does not verify, so an older one will be used
    return [what for what, names in _STATE.items() if not any(any(checkpoint.glob(name)) for name in names)]


def refuse_missing(checkpoint: Path, missing: list[str]) -> NoReturn:
    """Raise the RunError that lists what a checkpoint lacks and how to resume anyway."""
    raise RunError(
        f"the checkpoint lacks {' and '.join(missing)}: what follows would be another run",
        where=str(checkpoint),
        expected="a checkpoint written with trainer.args.save_only_model=false, and all of its files",
        hint=Prose(
            "run.resume_weights_only=true goes on from the weights: optimizer, schedule and random numbers start anew"
        ),
    )
