"""Judge mutants in several processes, each with a copy of the project and, once it needs them, all tests collected."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from scripts.mutants.collected import Collected
from scripts.mutants.forked import Chosen, Ended, copied, run_tests
from scripts.mutants.mutations import Mutant
from scripts.mutants.project import Project
from scripts.mutants.reach import MeasuredTest, chosen, measured
from scripts.mutants.survivors import Verdict


def verdicts(project: Project, mutants: Sequence[Mutant], place: Path, jobs: int, budget_s: float) -> Iterator[Verdict]:
    """Measure the tests of the project, then yield the verdicts on mutants in their order.

    place: a folder for the copies. Raise ControlFailed if a test fails on the unchanged code.
    """
    bench = _Bench(project, place, budget_s)
    for name in ("measure", "judge"):
        with ProcessPoolExecutor(jobs, multiprocessing.get_context("fork"), _begin, (bench,)) as pool:
            if name == "measure":
                bench.tests += [test for tests in pool.map(_measure, project.test_files()) for test in tests]
            else:
                yield from pool.map(_judge, mutants)


@dataclass
class _Bench:
    """What one process judges with. `sound`: the tests that were seen to pass beside others on the unchanged code."""

    project: Project
    place: Path
    budget_s: float
    tests: list[MeasuredTest] = field(default_factory=list)
    sound: set[str] = field(default_factory=set)

    @cached_property
    def copy(self) -> Path:
        """The project's copy of this process."""
        return copied(self.project.root, self.project.copied, self.place / str(os.getpid()))

    @cached_property
    def collected(self) -> Collected:
        """All tests, collected on the unchanged code."""
        return Collected(self.copy, self.project.test_files(), self.tests)


_bench: _Bench


def _begin(bench: _Bench) -> None:
    global _bench
    _bench = bench


def _measure(test_file: str) -> list[MeasuredTest]:
    project = _bench.project
    return measured(_bench.copy, test_file, list(project.mutated_files()), project.root / project.cache)


def _judge(mutant: Mutant) -> Verdict:
    start, outcome, by = time.monotonic(), "unreached", ""
    _ = _bench.collected  # of the unchanged code
    for helping in chosen(mutant, _bench.tests, _bench.budget_s):
        ended = _ended(mutant, helping)
        outcome, by = "survived", _killer(ended.output)
        if ended.code is None:
            outcome = "timed out"
        elif ended.code == 5:
            raise RuntimeError(f"no test was collected for {mutant.in_words}:\n{ended.output[-2000:]}")
        elif ended.code != 0:
            outcome = "killed"
        if outcome != "survived":
            break
    return Verdict(mutant, outcome, time.monotonic() - start, by)


def _ended(mutant: Mutant, tests: Sequence[MeasuredTest]) -> Ended:
    """Run tests on the mutated file: those collected, or freshly imported ones for a statement of the module.

    A collected test that fails for the first time must pass on the unchanged code after the same tests; else it no
    longer judges.
    """
    collected = _bench.collected
    while not mutant.at_import and tests:
        with _planted(mutant):
            ended = collected.run(mutant.file, mutant.line, tests)
        if ended is None:
            break
        killer = _killer(ended.output)
        place = next((place for place, test in enumerate(tests) if test.node == killer), None)
        if place is None or killer in _bench.sound:
            return ended
        control = collected.run("", 0, tests[: place + 1])
        if control is not None and control.code == 0:
            _bench.sound.add(killer)
            return ended
        print(f"left out: {killer} fails unmutated, too, after {place} others", file=sys.stderr, flush=True)
        _bench.tests = [test for test in _bench.tests if test.node != killer]
        tests = [test for test in tests if test.node != killer]
    if not tests:
        return Ended(0, 0.0, "")
    files = list(dict.fromkeys(test.file for test in tests))
    timeout_s = 20 + 5 * sum(test.wall_s for test in tests)
    with _planted(mutant):
        return run_tests(_bench.copy, files, Chosen([test.node for test in tests]), timeout_s, keep_bytecode=False)


@contextlib.contextmanager
def _planted(mutant: Mutant) -> Iterator[None]:
    """Write the mutated file into the copy, and remove its compiled code."""
    file = _bench.copy / mutant.file
    source = file.read_text(encoding="utf-8")
    mutated = mutant.applied(source)
    compile(mutated, mutant.file, "exec")
    for compiled in file.parent.glob(f"__pycache__/{file.stem}.*"):
        compiled.unlink()
    file.write_text(mutated, encoding="utf-8")
    try:
        yield
    finally:
        file.write_text(source, encoding="utf-8")


def _killer(output: str) -> str:
    """Return the first test that failed, empty if a whole file did."""
    lines = [line for line in output.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    failed = [line.split(" ", 1)[1].split(" - ")[0] for line in lines]
    return next((node for node in failed if node.split("::")[0].endswith(".py")), "")
