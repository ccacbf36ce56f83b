"""Runs that several trainers make one after another in one process, or in each of several, on completions replayed.

As a script, `replayed_runs.py FOLDER...` is what a launcher starts in every process: one start for all runs.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from rlhf_cli.launch.freeze import create_run
from rlhf_cli.launch.worker import run_rank
from rlhf_cli.plan.preflight import preflight
from rlhf_cli.plan.prepare import prepare
from rlhf_cli.runs.run_folder import RunFolder

EOS = 1
DEALT = "dealt"
"""A run whose name begins so has the same rows in each minibatch, however many processes share them."""


def frozen(words: list[str]) -> RunFolder:
    """The folder of a run that has been prepared and not begun."""
    prepared = prepare(words)
    plan = preflight(prepared.experiment, prepared.composed)
    return create_run(prepared.experiment, prepared.composed, files=plan.files)


def run_all(folders: list[RunFolder]) -> None:
    """Train every frozen run to its end in this process; a policy says what its prompt and place in the group say."""
    import rlhf_cli.trainers.assemble.trainer

    assemble = rlhf_cli.trainers.assemble.trainer.assemble

    def replaying(*args: Any, **named: Any) -> Any:
        trainer = assemble(*args, **named)
        if trainer.extensions.rewards is not None:
            _replay(trainer)
        return trainer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rlhf_cli.trainers.assemble.trainer, "assemble", replaying)
        for folder in folders:
            with pytest.MonkeyPatch.context() as dealing:
                if folder.path.name.startswith(DEALT):
                    dealing.setattr("trl.trainer.grpo_trainer.shuffle_sequence_dict", _dealt)
                run_rank(folder, resume=False)


def _dealt(rows: dict[str, Any]) -> dict[str, Any]:
    """In place of TRL's shuffle, which is of each process's own rows: two processes keep their order, and one deals its
    two halves out as the two have them, a quarter of each to each of two minibatches.
    """
    if os.environ.get("WORLD_SIZE") == "2":
        return rows
    count = len(rows["completion_ids"])
    first, second, third, fourth = torch.arange(count).split(count // 4)
    order = torch.cat([first, third, second, fourth])
    return {
        name: value[order] if isinstance(value, torch.Tensor) and value.dim() else value for name, value in rows.items()
    }


def _replay(trainer: Any) -> None:
    def generate(prompt_ids: list[list[int]], *args: Any, **named: Any) -> Any:
        ids = [
            _completion(prompt, row % trainer.num_generations, trainer.max_completion_length)
            for row, prompt in enumerate(prompt_ids)
        ]
        return ids if type(trainer).__name__ == "RLOOTrainer" else (ids, None)

    trainer._generate_single_turn = generate


def _completion(prompt: list[int], place: int, limit: int) -> list[int]:
    """Return one to `limit` tokens, about a third of them cut off."""
    draw = random.Random(f"{prompt} {place}")
    ids = [draw.randrange(40, 200) for _ in range(draw.randint(1, limit))]
    return ids if len(ids) == limit else [*ids, EOS]


if __name__ == "__main__":
    run_all([RunFolder(Path(folder)) for folder in sys.argv[1:]])
