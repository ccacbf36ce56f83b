"""Measure a long run of a tiny policy: the growth of its memory and the size of its folder.

usage: soak.py [--steps 3000] [--trainer grpo|ppo] [--every 50] [words of `rlhf train` ...]

Trains in this process, in a temporary folder, and samples the resident memory every N steps (--every). Prints the slope
of the second half in kB per step, by least squares, with its standard error, and the contents of the folder; the first
half fills caches and arenas. Exit code 1 if the slope is above 1 kB per step and above three standard errors.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlhf_cli.cli import main as rlhf

_PAGE = os.sysconf("SC_PAGE_SIZE")
_LIMIT_KB = 1.0
_SMALL = [
    *("+exp=quickstart", "model.build.hidden_size=16", "model.build.num_layers=1", "model.build.warm_start=null"),
    *("trainer.args.per_device_train_batch_size=8", "trainer.args.num_generations=4", "data.args.num_rows=64"),
    *("trainer.args.max_completion_length=4", "trainer.args.save_steps=500", "launch=cpu", "guards.no_signal=off"),
]
_PPO = ["trainer=ppo", "trainer.args.num_generations=1", "trainer.args.steps_per_generation=2"]


def resident_kb() -> float:
    """Return the resident memory of this process in kB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE / 1024


def slope(steps: Sequence[float], values: Sequence[float]) -> tuple[float, float]:
    """Return the slope of a line by least squares and its standard error, in units of `values` per step."""
    count = len(steps)
    mean_x, mean_y = sum(steps) / count, sum(values) / count
    spread = sum((x - mean_x) ** 2 for x in steps)
    rise = sum((x - mean_x) * (y - mean_y) for x, y in zip(steps, values, strict=True)) / spread
    left = sum((y - mean_y - rise * (x - mean_x)) ** 2 for x, y in zip(steps, values, strict=True))
    return rise, math.sqrt(left / max(1, count - 2) / spread)


def main() -> int:
    """Run it and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--trainer", choices=("grpo", "ppo"), default="grpo")
    parser.add_argument("--every", type=int, default=50)
    options, words = parser.parse_known_args()

    from transformers import TrainerCallback

    import rlhf_cli.trainers.assemble.trainer

    samples: list[tuple[int, float]] = []
    assemble = rlhf_cli.trainers.assemble.trainer.assemble

    class Sample(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step % options.every == 0:
                samples.append((state.global_step, resident_kb()))
                print(f"step {state.global_step}: {samples[-1][1]:.0f} kB", file=sys.stderr)

    def with_sample(*args: Any, **named: Any) -> Any:
        trainer = assemble(*args, **named)
        trainer.add_callback(Sample())
        return trainer

    rlhf_cli.trainers.assemble.trainer.assemble = with_sample
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        kind = _PPO if options.trainer == "ppo" else []
        code = rlhf(["train", *_SMALL, *kind, f"trainer.args.max_steps={options.steps}", f"run.root={folder}", *words])
        if code != 0:
            return code
        _print_folder(next(Path(folder).rglob("config.yaml")).parent, options.steps)
    later = [(step, kb) for step, kb in samples if step >= options.steps // 2]
    rise, error = slope([step for step, _ in later], [kb for _, kb in later])
    print(f"resident memory at step {later[0][0]}: {later[0][1]:.0f} kB, at step {later[-1][0]}: {later[-1][1]:.0f} kB")
    print(f"slope of the second half: {rise:.3f} kB a step, standard error {error:.3f}")
    return 1 if rise > _LIMIT_KB and rise > 3 * error else 0


def _print_folder(run: Path, steps: int) -> None:
    """Print the bytes and the number of files of every part of a run folder."""
    for part in sorted(run.iterdir()):
        files = [part] if part.is_file() else [file for file in part.rglob("*") if file.is_file()]
        size = sum(file.stat().st_size for file in files)
        print(f"{part.name:<24} {size:>12} bytes in {len(files):>5} files, {size / steps:>9.0f} bytes a step")
    for state in sorted(run.glob("checkpoints/*/trainer_state.json")):
        print(f"{state.parent.name}/{state.name}: {state.stat().st_size} bytes")


if __name__ == "__main__":
    sys.exit(main())
