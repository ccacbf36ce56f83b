"""The command of a run that is broken: seconds of training, a save at every other step, every kind of child process.

One reward runs in isolated workers, another starts a sandboxed program; some strikes turn on wandb offline.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from scripts.chaos.strikes import Case

STEPS = 20
_SMALL = [
    *("+exp=quickstart", "model.build.hidden_size=16", "model.build.num_layers=1", "model.build.warm_start=null"),
    *("trainer.args.max_completion_length=4", "data.args.num_rows=64", "launch=cpu", "guards.no_signal=off"),
    *("rewards.isolated.fn=./chaos_rewards.py:isolated", "rewards.isolated.isolate=true"),
    *("rewards.sandboxed.fn=./chaos_rewards.py:sandboxed", "rewards.sandboxed.weight=0.1"),
    *(f"trainer.args.max_steps={STEPS}", "trainer.args.save_steps=2", "launch.grace_s=40"),
]
_OF_TRAINER = {
    "grpo": ["trainer.args.num_generations=4"],
    "ppo": ["trainer=ppo", "trainer.args.num_generations=1", "critic.learning_rate=0.001"],
}
_WINDOWS = ["trainer.args.steps_per_generation=2", "trainer.args.num_iterations=2"]
"""Four optimizer steps per rollout, with a save in the middle of each."""


def words(case: Case, name: str, track: str, place: Path) -> list[str]:
    """Return the words after `rlhf` for a run of that name below `place`; call `prepare` first."""
    rows = 8 // case.processes
    return [
        "train",
        *_SMALL,
        *_OF_TRAINER[case.trainer],
        *_WINDOWS,
        *(f"launch.processes={case.processes}", f"trainer.args.per_device_train_batch_size={rows}"),
        *(f"track={track}", f"run.name={name}", f"run.root={place / case.name}"),
    ]


def folder(case: Case, name: str, place: Path) -> Path:
    """Return the run folder of that run."""
    return place / case.name / "quickstart" / name


def prepare(place: Path) -> None:
    """Write the rewards into the working folder of the commands."""
    place.mkdir(parents=True, exist_ok=True)
    shutil.copy(Path(__file__).with_name("chaos_rewards.py"), place)
