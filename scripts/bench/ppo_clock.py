"""`rlhf` with a clock in it: what passed between the beginning of training and its end, startup and saving left out.

usage: ppo_clock.py OUT.json train +exp=toy_ppo ...
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

from transformers import TrainerCallback


class Clock(TrainerCallback):
    """Wall and CPU seconds of the process when training began and after every step."""

    def __init__(self) -> None:
        self.stamps: list[tuple[float, float]] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.stamps.append(now())

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.stamps.append(now())

    def seconds(self) -> dict[str, float]:
        """`wall_s` and `cpu_s` from the first stamp to the last."""
        (wall_a, cpu_a), (wall_b, cpu_b) = self.stamps[0], self.stamps[-1]
        return {"wall_s": wall_b - wall_a, "cpu_s": cpu_b - cpu_a}


def now() -> tuple[float, float]:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return time.perf_counter(), usage.ru_utime + usage.ru_stime


def main(out: Path, words: list[str]) -> int:
    from rlhf_cli import cli
    from rlhf_cli.launch import callbacks

    clocks: list[Clock] = []
    recorder = callbacks.Recorder

    class Recorder(recorder):  # type: ignore[misc, valid-type]
        """Every run has one, so that the clock comes in with it."""

        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            clocks.append(Clock())

        def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            super().on_train_begin(args, state, control, **others)
            clocks[-1].on_train_begin(args, state, control)

        def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            super().on_step_end(args, state, control, **others)
            clocks[-1].on_step_end(args, state, control)

    callbacks.Recorder = Recorder  # type: ignore[misc]
    code = cli.main(words)
    if code == 0:
        out.write_text(json.dumps(clocks[-1].seconds()))
    return code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
