"""What it costs to know where the time goes: seconds spent in timing phases and counting tokens, of a training's.

The first lines are what is spent within: every function that `profile=phases` adds is timed from the outside, in the
run that it is part of. The timers' own time is in it, so that it is too large rather than too small. The last is whole
runs side by side, in turn: it is too noisy to show half a per cent, and would show ten.

usage: python -m scripts.bench.profiling_cost [--exp quickstart] [--steps 60] [--pairs 5] [key=value ...]
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from rlhf_cli.cli import main as rlhf
from rlhf_cli.launch import callbacks
from rlhf_cli.runs.heartbeat import Heartbeat
from rlhf_cli.runs.phase_clock import PhaseClock
from rlhf_cli.trainers import step_profile
from rlhf_cli.trainers.step_profile import StepProfile

_WARM_UP = 3
"""Steps before the first that counts."""


class Spent:
    """CPU seconds of the process between the first step that counts and the last, and those within what was timed."""

    def __init__(self) -> None:
        self.cpu_s = self.began_s = 0.0
        self.within_s: dict[str, float] = {}
        self.calls: dict[str, int] = {}
        self.num_steps = 0
        self._depth = 0

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, with its seconds added; within another one that is timed they are that one's."""

        @functools.wraps(function)
        def call(*given: Any, **named: Any) -> Any:
            self._depth += 1
            began = time.thread_time()
            try:
                return function(*given, **named)
            finally:
                self._depth -= 1
                if not self._depth:
                    self.within_s[name] = self.within_s.get(name, 0.0) + time.thread_time() - began
                    self.calls[name] = self.calls.get(name, 0) + 1

        return call


class Window(TrainerCallback):
    """Tells `spent` when the steps that count begin, and when they have ended."""

    def __init__(self, spent: Spent) -> None:
        self._spent = spent

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if state.global_step == _WARM_UP:
            self._spent.within_s, self._spent.calls = {}, {}
            self._spent.began_s = time.process_time()
        self._spent.cpu_s = time.process_time() - self._spent.began_s
        self._spent.num_steps = state.global_step - _WARM_UP


@contextlib.contextmanager
def instead(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Put another value in the place of an attribute."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def train(words: list[str], *, within: bool) -> Spent:
    """Return what a run spent; with `within`, of that what its profile did."""
    spent = Spent()
    window = Window(spent)

    def step_end(_: object, *given: Any, **named: Any) -> None:
        window.on_step_end(*given, **named)

    with contextlib.ExitStack() as stack:
        stack.enter_context(instead(callbacks.Recorder, "on_step_end", step_end))
        if within:
            for owner, name in (
                (Heartbeat, "enter_part"),
                (PhaseClock, "hear"),
                (PhaseClock, "run_rewards"),
                (StepProfile, "taken"),
                (step_profile, "count"),
            ):
                stack.enter_context(instead(owner, name, spent.timed(name, getattr(owner, name))))
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            if code := rlhf(["train", *words]):
                raise SystemExit(code)
    return spent


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--exp", default="quickstart")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("words", nargs="*")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as workplace:
        os.chdir(workplace)
        words = [f"+exp={options.exp}", "launch=cpu", "track=none", f"trainer.args.max_steps={options.steps}"]
        words += options.words
        one = train([*words, "run.name=within"], within=True)
        a_step = {name: 1e3 * seconds / one.num_steps for name, seconds in one.within_s.items()}
        calls = {name: count / one.num_steps for name, count in one.calls.items()}
        said = ", ".join(f"{name} {ms:.3f} ms in {calls[name]:.1f} calls" for name, ms in a_step.items())
        print(f"a step takes {1e3 * one.cpu_s / one.num_steps:.1f} ms of CPU; of that {said}")
        print(f"together {sum(one.within_s.values()) / one.cpu_s:.3%}")
        ratios = []
        for number in range(options.pairs):
            with_it, without = (
                train([*words, f"profile={profile}", f"run.name={profile}{number}"], within=False).cpu_s
                for profile in ("phases", "off")
            )
            ratios.append(with_it / without)
        if ratios:
            print(
                f"phases / off, CPU seconds of {options.steps - _WARM_UP} steps: "
                f"median {statistics.median(ratios):.3f}, "
                f"{min(ratios):.3f} to {max(ratios):.3f} in {len(ratios)} pairs"
            )


if __name__ == "__main__":
    main()
