"""What a sweep saves: tiny runs by `rlhf train -m` against as many fresh processes, and two at a time against one.

    python -m scripts.bench.sweep --runs 20 [--steps 3] [--fresh 20]

Prints seconds by the clock and of CPU time for each way, and the ratios; on a machine that others use, only ratios of
CPU time mean anything, and for `-j 2` the time by the clock does. `--fresh N` starts so many fresh processes, and
reckons with their mean, where all of them would take too long. Every way learns the same: the weights are compared.
The runs alone, from the end of the first to that of the last, leave out what a sweep does once: it imports torch and
TRL before them, and compares and reports after them.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from rlhf_cli.runs.provenance import weights_hash

_ENDED = re.compile(r"^\[\d+/\d+\] .* finished in ")
_WORDS = ["+exp=quickstart", "launch=cpu", "track=none"]


@dataclass(frozen=True)
class Took:
    """What a way of running took, in seconds by the clock and of CPU time, its processes together.

    `ends_s` are when runs of a sweep ended, by the clock, since it began.
    """

    wall_s: float
    cpu_s: float
    ends_s: tuple[float, ...] = ()

    def s_per_run(self, at_once: int) -> float:
        """By the clock, of the runs alone: when the first ends, `at_once` have been begun and not paid for."""
        return (self.ends_s[-1] - self.ends_s[0]) / (len(self.ends_s) - at_once)

    def per_run(self, count: int) -> str:
        """As a line of the table."""
        return f"{self.wall_s:8.1f} s {self.cpu_s:8.1f} s {self.wall_s / count:8.2f} s {self.cpu_s / count:8.2f} s"


def took(*commands: list[str]) -> Took:
    """Run commands one after another, quietly."""
    before, began_at = _children_cpu_s(), time.monotonic()
    ends_s: list[float] = []
    for words in commands:
        argv = [sys.executable, "-u", "-m", "rlhf_cli", *words]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            ends_s += [time.monotonic() - began_at for line in process.stdout if _ENDED.match(line)]
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, argv)
    return Took(time.monotonic() - began_at, _children_cpu_s() - before, tuple(ends_s))


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def hashes(folder: Path, names: list[str]) -> list[str | None]:
    """The weights that each run of a sweep, or of a folder of runs, ended with."""
    return [weights_hash(folder / name / "model") for name in names]


def main() -> None:
    """Measure, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--fresh", type=int, default=None)
    options = parser.parse_args()
    fresh_runs = min(options.runs, options.fresh or options.runs)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)
        words = [*_WORDS, f"trainer.args.max_steps={options.steps}"]
        took(["train", *words, "run.name=first"])  # what is made once is made before
        fresh = took(*(["train", *words, f"seed={seed}", f"run.name=fresh{seed}"] for seed in range(fresh_runs)))
        ways = {}
        for at_once in (1, 2):
            swept = [f"seed=range(0,{options.runs})", f"run.name=j{at_once}", f"-j{at_once}"]
            ways[at_once] = took(["train", "-m", *words, *swept])
        folder = Path("runs/quickstart")
        names = [f"seed={seed}" for seed in range(fresh_runs)]
        same = (
            hashes(folder, [f"fresh{seed}" for seed in range(fresh_runs)])
            == hashes(folder / "j1", names)
            == hashes(folder / "j2", names)
        )
    print(f"{'':<22}{'clock':>10} {'CPU':>10} {'a run':>10} {'CPU':>10}")
    print(f"{f'{fresh_runs} fresh processes':<22}{fresh.per_run(fresh_runs)}")
    for at_once, way in ways.items():
        print(f"{f'sweep of {options.runs}, -j {at_once}':<22}{way.per_run(options.runs)}")
    share = options.runs / fresh_runs
    print(f"-j 1 against fresh:  {fresh.wall_s * share / ways[1].wall_s:.2f} times faster by the clock", end=", ")
    print(f"{fresh.cpu_s * share / ways[1].cpu_s:.2f} times less CPU time")
    print(f"-j 2 against -j 1:   {ways[1].wall_s / ways[2].wall_s:.2f} times faster by the clock", end=", ")
    print(f"{ways[2].cpu_s / ways[1].cpu_s:.2f} of its CPU time")
    one, two = (way.s_per_run(at_once) for at_once, way in ways.items())
    print(f"the runs alone:      {one:.2f} s a run with -j 1, {two:.2f} s with -j 2: {one / two:.2f} times faster")
    print(f"the same weights everywhere: {same}")


if __name__ == "__main__":
    main()
