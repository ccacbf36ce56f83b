"""Whole commands side by side: run A and B in turn, compare the medians of what the system accounts to them.

Turn by turn, because a shared machine drifts; CPU seconds beside wall seconds, because they tell work from waiting.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from dataclasses import dataclass


@dataclass(frozen=True)
class Cost:
    """What one finished process took. `peak_mb` is the largest resident size of any single process."""

    wall_s: float
    cpu_s: float
    peak_mb: float


def cost_of(command: list[str], *, cwd: str, environment: dict[str, str]) -> Cost:
    """Run `command` to its end and account for it. Raises CalledProcessError when it fails."""
    began = time.perf_counter()
    process = subprocess.Popen(
        command, cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    wall_s = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        print(output)
        raise subprocess.CalledProcessError(process.returncode, command)
    return Cost(wall_s, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def print_ratios(name_a: str, name_b: str, pairs: list[tuple[Cost, Cost]]) -> None:
    """One line a figure: median of A, median of B, median of the ratios A/B pair by pair with their range."""
    print(f"{'':<12}{name_a:>14}{name_b:>14}{'A/B median':>12}{'min':>8}{'max':>8}   {len(pairs)} pairs")
    for figure in ("wall_s", "cpu_s", "peak_mb"):
        a = [getattr(pair[0], figure) for pair in pairs]
        b = [getattr(pair[1], figure) for pair in pairs]
        ratios = [x / y for x, y in zip(a, b, strict=True)]
        print(
            f"{figure:<12}{statistics.median(a):>14.2f}{statistics.median(b):>14.2f}"
            f"{statistics.median(ratios):>12.3f}{min(ratios):>8.3f}{max(ratios):>8.3f}"
        )
