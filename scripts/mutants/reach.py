"""Which test reaches which line: every file of tests runs once, unchanged, and must be green."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.mutants.forked import Watched, run_tests
from scripts.mutants.mutations import Mutant


class ControlFailed(Exception):
    """A test fails without any mutation: whatever it killed would say nothing."""


@dataclass(frozen=True)
class MeasuredTest:
    """A test, the seconds it takes, and the lines it reaches of each file."""

    node: str
    seconds: float
    lines: dict[str, frozenset[int]]

    @property
    def file(self) -> str:
        """The file of tests it is in."""
        return self.node.split("::")[0]


def measured(copy: Path, test_files: Sequence[str], targets: Sequence[str], cache: Path) -> list[MeasuredTest]:
    """Return the tests of files, each run once in a fork of its own; what was measured before is taken from `cache`.

    Raises ControlFailed where one fails.
    """
    tests: list[MeasuredTest] = []
    for file in test_files:
        known = cache / f"{_key(copy, file, targets)}.json"
        if not known.exists():
            report = copy.parent / "reach.json"
            report.unlink(missing_ok=True)
            ended = run_tests(copy, [file], Watched(copy, targets, report), 900, keep_bytecode=True)
            found = json.loads(report.read_text()) if report.exists() else {"tests": {}, "red": ["none ran"]}
            if ended.code not in (0, 5) or found["red"]:
                raise ControlFailed(f"{file} is red without a mutation: {found['red']}\n{ended.output[-3000:]}")
            cache.mkdir(parents=True, exist_ok=True)
            known.write_text(json.dumps(found))
            print(f"control  {ended.seconds:6.1f} s  {file}", file=sys.stderr, flush=True)
        for node, seen in json.loads(known.read_text())["tests"].items():
            lines = {name: frozenset(reached) for name, reached in seen["lines"].items()}
            tests.append(MeasuredTest(node, seen["seconds"], lines))
    return tests


def chosen(mutant: Mutant, tests: Sequence[MeasuredTest], budget_s: float) -> Iterator[list[MeasuredTest]]:
    """Yield the tests to judge a mutant by, in two helpings: those nearest to the file, then the others.

    Nearest are the files of tests that bear the module's name, then those of its folder. Tests that reach the mutated
    statement are taken, then what else is in their files (it may look at what another test computed), the quick ones
    first; half of `budget_s`, in unmutated time, is for the files with the module's name, the rest for all. Where none
    reaches it the tests that bear the module's name are taken: it may run in a process of its own. Of what runs when it
    is imported those of its folder are taken, too.
    """
    first, last = mutant.lines
    statement = set(range(first, last + 1))
    reached = {test.node: test.lines.get(mutant.file, frozenset()) for test in tests}
    if mutant.at_import:  # it may run in conftest.py, before anybody watches
        reaching = [test for test in tests if reached[test.node] or _is_near(mutant.file, test)]
    else:
        reaching = [test for test in tests if statement & reached[test.node]]
    if not reaching:  # as far as can be seen, which is not into other processes
        reaching = [test for test in tests if _has_name(mutant.file, test)]
    files = {test.file for test in reaching}
    beside = [test for test in tests if test.file in files and test not in reaching]
    by_seconds = sorted(reaching, key=lambda test: test.seconds) + sorted(beside, key=lambda test: test.seconds)
    kept: list[MeasuredTest] = []
    used = 0.0
    for some, share in (([test for test in by_seconds if _has_name(mutant.file, test)], 0.5), (by_seconds, 1.0)):
        for test in some:
            if test not in kept and (not kept or used + test.seconds <= share * budget_s):
                used += test.seconds
                kept.append(test)
    for helping in (
        [one for one in kept if _is_near(mutant.file, one)],
        [one for one in kept if not _is_near(mutant.file, one)],
    ):
        if helping:
            yield helping


def _is_near(file: str, test: MeasuredTest) -> bool:
    return _has_name(file, test) or Path(file).parts[1:-1] == Path(test.file).parts[1:-1]


def _has_name(file: str, test: MeasuredTest) -> bool:
    return Path(file).stem in Path(test.file).stem


def _key(copy: Path, test_file: str, targets: Sequence[str]) -> str:
    """Return a hash of all that a measurement depends on: the package, what tests share, the file itself."""
    digest = hashlib.sha256(repr(sorted(targets)).encode())
    ours = [one for one in sorted(copy.rglob("*.py")) if one.relative_to(copy).parts[0] != "scripts"]
    shared = [one for one in ours if not one.name.startswith("test_")]
    for file in [*shared, copy / test_file]:
        digest.update(str(file.relative_to(copy)).encode() + file.read_bytes())
    return digest.hexdigest()[:20]
