"""Judge mutants in forks of a process that has collected all tests: a fork takes milliseconds, collecting a minute.

In the fork the functions that the mutation changes get the code of the mutated file. What was imported before the fork
keeps the rest, so a mutant of a module's own statements needs a fresh import (forked.py).
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from types import CodeType, FunctionType

import pytest

from scripts.mutants.forked import END, TOLD, Ended, be_the_child, take_own_mounts, wait_for
from scripts.mutants.reach import MeasuredTest

_SLOWEST = 4
"""A mutated test may take this many times the seconds of the slowest test of its file, and as many seconds more."""
_TIMEOUT, _NOT_CHANGED = 40, 41
"""Exit codes of a fork: a test took too long; the mutated function is not among those imported."""


class Collected:
    """A process with the tests of all files collected; `run` answers from a fork of it."""

    def __init__(self, copy: Path, test_files: Sequence[str], measured: Sequence[MeasuredTest]) -> None:
        self._copy, self._slowest_s = copy, dict[str, float]()
        for test in measured:  # in another order, another test pays for the fixtures of its file
            self._slowest_s[test.file] = max(test.wall_s, self._slowest_s.get(test.file, 0.0))
        self._ours, theirs = Pipe()
        if os.fork() == 0:
            self._ours.close()  # else it would not see that this process has ended
            plugin = _Answering(theirs, copy)
            be_the_child(copy, test_files, plugin, copy.parent / "collected.txt", keep_bytecode=True)
        theirs.close()
        try:
            self._ours.recv()
        except EOFError:
            raise RuntimeError((copy.parent / "collected.txt").read_text(errors="replace")[-3000:]) from None

    def run(self, file: str, line: int, tests: Sequence[MeasuredTest]) -> Ended | None:
        """Run tests until one fails, with the function at a line of the mutated file; None if it cannot be changed."""
        limits_s = {test.node: _SLOWEST * (1 + self._slowest_s[test.file]) for test in tests}
        self._ours.send((file, line, limits_s))
        ended = Ended(**self._ours.recv())
        if ended.code == _NOT_CHANGED:
            return None
        return replace(ended, code=None) if ended.code == _TIMEOUT else ended


class _Answering:
    """A plugin that, in place of running the tests, answers questions until the pipe is closed."""

    def __init__(self, pipe: Connection, copy: Path) -> None:
        self._pipe, self._copy = pipe, copy

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        functions = _functions_below(self._copy)
        gc.collect()
        gc.freeze()
        self._pipe.send("ready")
        while True:
            try:
                file, line, limits_s = self._pipe.recv()
            except EOFError:
                return True
            path, log = str(self._copy / file), self._copy.parent / "output.txt"
            log.write_text("")
            tests = [(items[node], limit_s) for node, limit_s in limits_s.items()]
            if (child := os.fork()) == 0:
                _run_in_fork(functions.get(path, []), path, line, tests, log)
            self._pipe.send(asdict(wait_for(child, sum(limits_s.values()), self._copy)))


def _run_in_fork(
    functions: Sequence[FunctionType], path: str, line: int, tests: Sequence[tuple[pytest.Item, float]], log: Path
) -> None:
    """Change the functions, run the tests, and end this process."""
    code = TOLD
    sys.dont_write_bytecode = True
    try:
        os.setsid()
        take_own_mounts()
        if not _changed(functions, path, line):
            END(TOLD + _NOT_CHANGED)
        failed: list[str] = []
        tests[0][0].config.pluginmanager.register(_Noting(failed))
        for (item, limit_s), after in zip(tests, [*tests[1:], None], strict=True):
            watch = threading.Timer(limit_s, _give_up, [item.nodeid, log])
            watch.daemon = True
            watch.start()
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=after and after[0])
            watch.cancel()
            if failed:
                log.write_text(f"FAILED {failed[0]}\n")
                code += 1
                break
    except BaseException:
        log.write_text(traceback.format_exc())
        code = TOLD + 3
    END(code)


def _give_up(node: str, log: Path) -> None:
    log.write_text(f"FAILED {node}\n")
    END(TOLD + _TIMEOUT)


class _Noting:
    """A plugin that notes the tests that failed."""

    def __init__(self, failed: list[str]) -> None:
        self._failed = failed

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.append(report.nodeid)


def _functions_below(copy: Path) -> dict[str, list[FunctionType]]:
    found: dict[str, list[FunctionType]] = {}
    for item in gc.get_objects():
        if type(item) is FunctionType and item.__code__.co_filename.startswith(f"{copy}/"):
            found.setdefault(item.__code__.co_filename, []).append(item)
    return found


def _changed(functions: Sequence[FunctionType], path: str, line: int) -> bool:
    """Give functions the mutated code that stands around a line; return whether the outermost got it, or none is there.

    No function of a file is there if nothing has imported it: the fork will, mutated.
    """
    if not functions:
        return True
    around = [
        code for code in _codes(compile(Path(path).read_text(encoding="utf-8"), path, "exec")) if _spans(code, line)
    ]
    changed = []
    for function in functions:
        for code in around:
            if (code.co_qualname, code.co_firstlineno) == (
                function.__code__.co_qualname,
                function.__code__.co_firstlineno,
            ):
                try:
                    function.__code__ = code
                except ValueError:  # it has lost or won a variable of an outer function
                    return False
                changed.append(code)
    return bool(around) and around[0] in changed


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of every function, the outer one before those in it."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            if constant.co_flags & 2:  # CO_NEWLOCALS: a function, no class
                yield constant
            yield from _codes(constant)


def _spans(code: CodeType, line: int) -> bool:
    lines = [number for inner in (code, *_codes(code)) for _, _, number in inner.co_lines() if number is not None]
    return min(lines) <= line <= max(lines)
