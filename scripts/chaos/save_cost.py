"""Measures a checkpoint that is whole or not there against what TRL saves, of one trainer, in turn in one process.

Both save the same weights, optimizer, schedule and random state. Ours is staged, flushed to the disk, hashed, renamed,
and holds the rollout in use; TRL's is written where it lies and left to the page cache.
"""

from __future__ import annotations

import os
import shutil
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rlhf_cli.cli import main as rlhf

_STEP = 2
WORDS = [
    *("train", "+exp=quickstart", "model.build.hidden_size=512", "model.build.num_layers=8"),
    *("model.build.warm_start=null", "trainer.args.max_completion_length=2", "data.args.num_rows=64", "launch=cpu"),
    *("trainer.args.per_device_train_batch_size=4", "trainer.args.num_generations=2", "track=none"),
    *(f"trainer.args.max_steps={_STEP + 1}", "trainer.args.save_strategy=no", "run.name=cost", "guards.no_signal=off"),
]


@dataclass(frozen=True)
class Cost:
    """What one save took, and the bytes it left."""

    cpu_s: float
    wall_s: float
    num_bytes: int


def measure(place: Path, pairs: int) -> list[tuple[Cost, Cost]]:
    """Train a model of 100 MB for a moment and save it in turn; return (ours, TRL's) of each turn.

    Raises RuntimeError where the run fails.
    """
    import rlhf_cli.trainers.assemble.trainer

    assemble = rlhf_cli.trainers.assemble.trainer.assemble
    costs: list[tuple[Cost, Cost]] = []

    def with_saves(*words: Any, **named: Any) -> Any:
        trainer = assemble(*words, **named)
        trainer.add_callback(_saves(trainer, pairs, costs))
        return trainer

    rlhf_cli.trainers.assemble.trainer.assemble = with_saves
    try:
        code = rlhf([*WORDS, f"run.root={place / 'cost'}"])
    finally:
        rlhf_cli.trainers.assemble.trainer.assemble = assemble
    if code != 0 or not costs:
        raise RuntimeError(f"the run ended with {code}")
    return costs


def medians(costs: list[tuple[Cost, Cost]], figure: str) -> tuple[float, float, float, float, float]:
    """Return the medians of ours and TRL's, and of their ratios turn by turn with the range."""
    ours, plain = ([getattr(pair[side], figure) for pair in costs] for side in (0, 1))
    ratios = [one / other for one, other in zip(ours, plain, strict=True)]
    return statistics.median(ours), statistics.median(plain), statistics.median(ratios), min(ratios), max(ratios)


def _saves(trainer: Any, pairs: int, costs: list[tuple[Cost, Cost]]) -> Any:
    """Return a callback that saves both ways so many times, once there is a state of the optimizer."""
    from transformers import TrainerCallback

    trl_class = next(one for one in type(trainer).__mro__ if one.__module__.startswith("trl."))

    def plain(*words: Any) -> None:
        # What it calls of itself is to be TRL's, too.
        trainer._save_optimizer_and_scheduler = partial(trl_class._save_optimizer_and_scheduler, trainer)
        trl_class._save_checkpoint(trainer, *words)
        del trainer._save_optimizer_and_scheduler

    class Saves(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step != _STEP:
                return
            ways = [trainer._save_checkpoint, plain]
            for turn in range(pairs + 1):
                order = (0, 1) if turn % 2 else (1, 0)
                took = {way: _cost(trainer, ways[way]) for way in order}
                if turn > 0:  # the first of each imports and allocates
                    costs.append((took[0], took[1]))

    return Saves()


def _cost(trainer: Any, save: Callable[[Any, Any], None]) -> Cost:
    folder = Path(trainer._get_output_dir(None)) / f"checkpoint-{_STEP}"
    shutil.rmtree(folder, ignore_errors=True)
    os.sync()  # what lies in the page cache is not to be written on this one's time
    cpu_s, wall_s = time.process_time(), time.monotonic()
    save(trainer.model, None)
    cpu_s, wall_s = time.process_time() - cpu_s, time.monotonic() - wall_s
    return Cost(cpu_s, wall_s, sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()))
