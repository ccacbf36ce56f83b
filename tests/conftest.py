"""Fixtures of all tests: a clean environment, an empty working directory."""

from __future__ import annotations

import functools
import gc
import importlib.metadata
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rlhf_cli.config import compose
from rlhf_cli.config.compose import NotingLoader
from rlhf_cli.services import hub_lookup
from rlhf_cli.sweeps import run_jobs
from rlhf_cli.sweeps.warm_processes import WarmProcesses
from rlhf_cli.text.redaction import forgetting
from tests.support.quick_loader import QuickLoader
from tests.support.suggestions import WRONG, watch_refusals


class LastingProcesses(WarmProcesses):
    """Processes that all sweeps of the tests share; they end with the tests."""

    def close(self) -> None:
        """Do nothing, because the next sweep uses them."""


_processes = LastingProcesses(threads=1)

# All that is made while tests are collected stays: looking for garbage among it takes seconds.
gc.disable()

# One thread per worker: with torch's default the workers of `-n 2` slow each other down (403 s instead of 515 s for all
# tests on two cores), and the models are too small to gain from two threads.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# A shell makes background processes ignore Ctrl-C, and some tests send it.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Flushing protects from a power cut, which no test makes, and takes 4 ms for each of thirty files in a small run.
# tests/runs/test_checkpoint_folders.py tests its order.
os.fsync = lambda descriptor: None  # type: ignore[assignment]

# Every checkpoint looks up the versions of libraries, in files that do not change while tests run.
importlib.metadata.version = functools.cache(importlib.metadata.version)
importlib.metadata.metadata = functools.cache(importlib.metadata.metadata)

pytest_plugins = ["tests.support.run_fixtures"]

_LONG = {"slow": 3600, "processes": 900, "strategies": 1800, "slurm": 900, "vllm": 1800}
"""Marker -> the timeout of its tests in seconds; pyproject.toml has the one of the others."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give long tests a longer timeout."""
    for item in items:
        if longest := max((timeout_s for name, timeout_s in _LONG.items() if item.get_closest_marker(name)), default=0):
            item.add_marker(pytest.mark.timeout(longest))


_OURS_TO_SET = ("RLHF_CACHE", "WANDB", "HF_", "CUDA_VISIBLE_DEVICES", "NETRC")


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Remove logins, caches and switches from the environment; restore `sys.path` and the hidden secrets."""
    for name in list(os.environ):
        if name.startswith(_OURS_TO_SET):
            monkeypatch.delenv(name)
    monkeypatch.setattr(sys, "path", list(sys.path))
    with forgetting():
        yield


@pytest.fixture(autouse=True)
def hub_has_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the hub by one that has every model and data set, unless a test brings its own."""
    monkeypatch.setattr(hub_lookup, "_asked", lambda *_: hub_lookup.HubAnswer("there"))


@pytest.fixture(autouse=True, scope="session")
def all_is_collected() -> None:
    """Look for garbage again, and write no more compiled code.

    Python takes a module that a test writes for the compiled one of the same second and length.
    """
    gc.enable()
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"


@pytest.fixture(autouse=True, scope="session")
def composed_quickly() -> None:
    """Cache what Hydra composes; the fixture `by_hydra` turns this off."""
    compose.NotingLoader = QuickLoader  # type: ignore[misc]


@pytest.fixture(autouse=True, scope="session")
def one_server_for_all_sweeps() -> None:
    """Start the process that forks the jobs of sweeps once; a sweep may ask for any number of threads."""
    run_jobs.WarmProcesses = lambda *, threads: _processes  # type: ignore[assignment,misc]


@pytest.fixture(autouse=True, scope="session")
def refusals_are_watched() -> None:
    """Check the suggestion of every refusal in all tests."""
    watch_refusals()


@pytest.fixture(autouse=True)
def what_is_suggested_helps(refusals_are_watched: None, request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test if a refusal suggests a command that does not help, except in a module with MADE_UP_HINTS."""
    WRONG.clear()
    yield
    assert not WRONG or getattr(request.module, "MADE_UP_HINTS", False), "\n".join(WRONG)


@pytest.fixture
def by_hydra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Hydra read and merge every file, as for a user, because the test is about composition."""
    monkeypatch.setattr(compose, "NotingLoader", NotingLoader)


_freeze, _unfreeze = gc.freeze, gc.unfreeze
# When a run ends, it unfreezes all earlier objects: the next collection would walk torch and thousands of tests, 0.9 s.
gc.freeze = gc.unfreeze = lambda: None


@pytest.fixture(autouse=True, scope="module")
def garbage_is_new() -> None:
    """Collect the garbage of earlier test files once, and hide the rest from the collector."""
    gc.collect()
    _freeze()


@pytest.fixture
def freezes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let runs freeze and unfreeze older objects, as for a user."""
    monkeypatch.setattr(gc, "freeze", _freeze)
    monkeypatch.setattr(gc, "unfreeze", _unfreeze)
    yield
    _freeze()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to an empty working directory, with an empty home, outside this repository."""
    folder, home = tmp_path / "work", tmp_path / "home"
    folder.mkdir()
    home.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(home))
    return folder


@pytest.fixture
def write(place: Path) -> Callable[[str, str], Path]:
    """Return `write("conf/exp/mine.yaml", text)`, which writes a file below the working directory."""

    def call(name: str, text: str) -> Path:
        file = place / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        return file

    return call
