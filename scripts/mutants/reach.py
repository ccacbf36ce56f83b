"""Measure which test reaches which line: run every test file once on the unchanged code; all tests must pass."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.mutants.forked import Watched, run_tests
from scripts.mutants.mutations import Mutant


class ControlFailed(Exception):
    """A test fails without a mutation, so its kills would mean nothing."""


@dataclass(frozen=True)
class MeasuredTest:
    """A test, its seconds (of all its processes, and by the clock), and the lines that it reaches in each file."""

    node: str
    cpu_s: float
    wall_s: float
    lines: dict[str, frozenset[int]]

    @property
    def file(self) -> str:
        """The file of the test."""
        return self.node.split("::")[0]


def measured(copy: Path, test_file: str, targets: Sequence[str], cache: Path) -> list[MeasuredTest]:
    """Return the tests of a file, run once in a fork; use `cache` if it was measured before.

    Raise ControlFailed if a test fails.
    """
    known = cache / f"{_key(copy, test_file, targets)}.json"
    if not known.exists():
        report = copy.parent / "reach.json"
        for _ in range(2):  # one test may be red once, on a busy machine
            report.unlink(missing_ok=True)
            ended = run_tests(copy, [test_file], Watched(copy, targets, report), 900, keep_bytecode=True)
            found = json.loads(report.read_text()) if report.exists() else {"tests": {}, "red": ["none ran"]}
            is_red = ended.code not in (0, 5) or bool(found["red"])
            if not is_red:
                break
        if is_red:
            raise ControlFailed(f"{test_file} is red without a mutation: {found['red']}\n{ended.output[-3000:]}")
        cache.mkdir(parents=True, exist_ok=True)
        known.write_text(json.dumps(found))
        print(f"control  {ended.seconds:6.1f} s  {test_file}", file=sys.stderr, flush=True)
    return [
        MeasuredTest(
            node, seen["cpu_s"], seen["wall_s"], {name: frozenset(reached) for name, reached in seen["lines"].items()}
        )
        for node, seen in json.loads(known.read_text())["tests"].items()
    ]


def chosen(mutant: Mutant, tests: Sequence[MeasuredTest], budget_s: float) -> Iterator[list[MeasuredTest]]:
    """Yield the tests for a mutant in two groups: those nearest to the file, then the others.

    Nearest are test files named like the module, then those of its folder and below. Tests that reach the mutated
    statement come first, then the others of their files, quick ones first; half of `budget_s`, in unmutated time, is
    for files named like the module, half of the rest for those of its folder. If no test reaches the statement, the
    tests of its folder run, because it may run in another process. For code that runs at import, they run, too.
    """
    first, last = mutant.lines
    statement = set(range(first, last + 1))
    reached = {test.node: test.lines.get(mutant.file, frozenset()) for test in tests}
    if mutant.at_import:  # it may run in conftest.py, before tracing starts
        reaching = [test for test in tests if reached[test.node] or _is_near(mutant.file, test)]
    else:
        reaching = [test for test in tests if statement & reached[test.node]]
    if not reaching:  # not seen in other processes
        reaching = [test for test in tests if _is_near(mutant.file, test)]
    files = {test.file for test in reaching}
    beside = [test for test in tests if test.file in files and test not in reaching]
    by_seconds = sorted(reaching, key=lambda test: test.cpu_s) + sorted(beside, key=lambda test: test.cpu_s)
    kept: list[MeasuredTest] = []
    used = 0.0
    named = [test for test in by_seconds if _has_name(mutant.file, test)]
    near = [test for test in by_seconds if _is_near(mutant.file, test)]
    for some, share in ((named, 0.5), (near, 0.75), (by_seconds, 1.0)):
        for test in some:
            if test not in kept and (not kept or used + test.cpu_s <= share * budget_s):
                used += test.cpu_s
                kept.append(test)
    for helping in (
        [test for test in kept if _is_near(mutant.file, test)],
        [test for test in kept if not _is_near(mutant.file, test)],
    ):
        if helping:
            yield _file_by_file(helping)


def _file_by_file(tests: Sequence[MeasuredTest]) -> list[MeasuredTest]:
    """Keep the tests of a file together, whose fixtures they share; the quickest files first."""
    by_file: dict[str, list[MeasuredTest]] = {}
    for test in tests:
        by_file.setdefault(test.file, []).append(test)
    files = sorted(by_file.values(), key=lambda tests: sum(test.cpu_s for test in tests))
    return [test for tests in files for test in tests]


def _is_near(file: str, test: MeasuredTest) -> bool:
    folder, place = Path(file).parts[1:-1], Path(test.file).parts[1:-1]
    return _has_name(file, test) or (bool(folder) and place[: len(folder)] == folder)


def _has_name(file: str, test: MeasuredTest) -> bool:
    """Return whether a test file has the name of a module, or its words: memory_estimate in memory/test_estimate.py."""
    stem, words = Path(file).stem, set(re.split("[_/.]", test.file))
    return stem in Path(test.file).stem or words.issuperset(stem.split("_"))


def _key(copy: Path, test_file: str, targets: Sequence[str]) -> str:
    """Return a hash of everything that a measurement depends on: the package, shared test code, the file itself."""
    digest = hashlib.sha256(repr(sorted(targets)).encode())
    ours = [file for file in sorted(copy.rglob("*.py")) if file.relative_to(copy).parts[0] != "scripts"]
    shared = [file for file in ours if not file.name.startswith("test_")]
    for file in [*shared, copy / test_file]:
        digest.update(str(file.relative_to(copy)).encode() + file.read_bytes())
    return digest.hexdigest()[:20]
