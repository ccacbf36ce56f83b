"""Run tests in a fork of this process, which has imported torch and TRL but not the project.

Importing TRL takes seconds, a fork milliseconds. The tests run in a copy of the project, so processes that a test
starts read the mutated file, too.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import resource
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import coverage
import pytest

# Modules imported before pytest starts are not plugins of a test.
_IGNORED = "ignore:Module already imported:pytest.PytestAssertRewriteWarning"
END = os._exit
"""Taken before a mutant can replace it."""
TOLD = 32
"""Added to pytest's exit code, so that 0 means that the code under test ended the process."""
_SELECTED = "not slow and not slurm and not processes and not real"
"""Those of `make test` and of `make test-whole`."""
_OPTIONS = ("-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-W", _IGNORED, "-m", _SELECTED)


@dataclass(frozen=True)
class Ended:
    """How a fork ended: pytest's exit code (1 if a test ended the process), None after a timeout; its output."""

    code: int | None
    seconds: float
    output: str


def warm(modules: Sequence[str]) -> None:
    """Import slow modules once; `module:name` imports the name from it."""
    for entry in modules:
        module, _, name = entry.partition(":")
        imported = importlib.import_module(module)
        if name:
            getattr(imported, name)
    gc.collect()
    gc.freeze()


def copied(root: Path, folders: Sequence[str], place: Path) -> Path:
    """Return a copy of the project's folders and files below `place`."""
    copy = place / "copy"
    for name in folders:
        if (root / name).is_dir():
            shutil.copytree(root / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            copy.mkdir(parents=True, exist_ok=True)
            shutil.copy(root / name, copy / name)
    return copy


def run_tests(copy: Path, tests: Sequence[str], plugin: object, timeout_s: float, *, keep_bytecode: bool) -> Ended:
    """Run pytest on files in a fork and wait for it; end all processes that it started.

    keep_bytecode: write compiled modules beside their source; not for a mutant, whose source is removed.
    """
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        be_the_child(copy, tests, plugin, copy.parent / "output.txt", keep_bytecode=keep_bytecode)
    return wait_for(child, timeout_s, copy)


def wait_for(child: int, timeout_s: float, copy: Path) -> Ended:
    """Wait for a fork that writes to output.txt beside the copy; end all processes that it started."""
    start = time.monotonic()
    code = _wait(child, start + timeout_s)
    code = code if code is None else code - TOLD if code >= TOLD else 1
    shutil.rmtree(copy.parent / "tmp", ignore_errors=True)
    output = (copy.parent / "output.txt").read_text(encoding="utf-8", errors="replace")
    return Ended(code, time.monotonic() - start, output)


def _wait(child: int, deadline: float) -> int | None:
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            code: int | None = os.waitstatus_to_exitcode(status)
            break
        if time.monotonic() > deadline:
            code = None
            break
        time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # processes that the tests left
    if code is None:
        os.waitpid(child, 0)
    return code


def output_to(log: Path) -> None:
    """Write what this process says to a file, and let it read nothing."""
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)


def be_the_child(copy: Path, tests: Sequence[str], plugin: object, log: Path, *, keep_bytecode: bool) -> None:
    """Run pytest on files of the copy in this process, a fork, and end it."""
    code = 3
    try:
        os.setsid()
        take_own_mounts()
        resource.setrlimit(resource.RLIMIT_DATA, (_MOST_BYTES, resource.getrlimit(resource.RLIMIT_DATA)[1]))
        output_to(log)
        sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
        os.chdir(copy)
        sys.path.insert(0, str(copy))
        os.environ["PYTHONPATH"] = str(copy)
        if not keep_bytecode:
            sys.dont_write_bytecode = True
            os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        # The modules of this script are in a folder named like one of the copy.
        for name in [module for module in sys.modules if module.split(".")[0] in ("scripts", "tests")]:
            del sys.modules[name]
        options = [*_OPTIONS, f"--rootdir={copy}", f"--basetemp={copy.parent / 'tmp'}"]
        code = TOLD + int(pytest.main([*options, *tests], plugins=[plugin]))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        END(code)


_MOST_BYTES = 8 * 2**30
"""What a process of a mutant may allocate: an endless loop must not take the memory of the machine."""
_NEW_MOUNTS, _PRIVATE = 0x20000, 0x4000 | 0x40000
"""CLONE_NEWNS; MS_REC and MS_PRIVATE."""


def take_own_mounts() -> None:
    """Give this process mounts of its own: a mutant of the sandbox would mount over the machine's root.

    Where that is not allowed, a mutant cannot mount either.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEW_MOUNTS) == 0 and libc.mount(b"none", b"/", None, _PRIVATE, None):
        raise OSError(ctypes.get_errno(), "the tests' mounts cannot be separated from the machine's")


class Chosen:
    """A plugin that runs the chosen tests in order and stops at the first failure."""

    def __init__(self, order: Sequence[str]) -> None:
        self._order = {node: place for place, node in enumerate(order)}

    def pytest_configure(self, config: pytest.Config) -> None:
        config.option.maxfail = 1

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        chosen = [item for item in items if item.nodeid in self._order]
        items[:] = sorted(chosen, key=lambda item: self._order[item.nodeid])


class Watched:
    """A plugin that records the lines of `files` that each test reaches, and its seconds.

    Lines reached during import or in a fixture of several tests count for every test of the file. `report` gets
    {"tests": {node: {"cpu_s", "wall_s", "lines": {file: [line]}}}, "red": [node]}; cpu_s holds ended processes, too.
    """

    def __init__(self, root: Path, files: Sequence[str], report: Path) -> None:
        self._files = {str(root / file): file for file in files}
        self._coverage = coverage.Coverage(data_file=None, config_file=False, include=list(self._files), messages=False)
        self._coverage.set_option("run:disable_warnings", ["trace-changed", "no-data-collected", "module-not-measured"])
        self._report = report
        self._now = _SHARED
        self._seconds: dict[str, tuple[float, float]] = {}
        self._red: list[str] = []

    def pytest_sessionstart(self) -> None:
        self._enter(_SHARED)

    def _enter(self, context: str) -> str:
        """Count lines for another context from here on, and return the one before."""
        before, self._now = self._now, context
        self._coverage.stop()
        self._coverage.start()  # a test may have used a debugger
        self._coverage.switch_context(context)
        return before

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        before = self._enter(item.nodeid)
        cpu, wall = sum(os.times()[:4]), time.monotonic()
        result = yield
        self._seconds[item.nodeid] = sum(os.times()[:4]) - cpu, time.monotonic() - wall
        self._enter(before)
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, Any, Any]:
        if fixturedef.scope == "function":
            return (yield)
        before = self._enter(_SHARED)
        try:
            return (yield)
        finally:
            self._enter(before)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._red.append(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        self._coverage.stop()
        lines: dict[str, dict[str, list[int]]] = {node: {} for node in self._seconds}
        data = self._coverage.get_data()
        for path in data.measured_files():
            for line, contexts in data.contexts_by_lineno(path).items():
                for node in lines if _SHARED in contexts else contexts:
                    if node in lines:
                        lines[node].setdefault(self._files[path], []).append(line)
        tests = {
            node: {"cpu_s": cpu_s, "wall_s": wall_s, "lines": lines[node]}
            for node, (cpu_s, wall_s) in self._seconds.items()
        }
        self._report.write_text(json.dumps({"tests": tests, "red": self._red}), encoding="utf-8")


_SHARED = "shared"
"""The context of what runs for all tests of a file."""
