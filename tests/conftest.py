"""Shared by all tests: an environment of their own."""

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
from rlhf_cli.sweeps import warm_processes
from rlhf_cli.sweeps.warm_processes import WarmServer
from rlhf_cli.text.redaction import forgetting
from tests.support.quick_loader import QuickLoader
from tests.support.suggestions import WRONG, watch_refusals

_servers: list[WarmServer] = []


class LastingServer(WarmServer):
    """A server that a sweep may close as often as it likes."""

    def close(self) -> None:
        """Leave it to the next sweep; it ends with the tests."""


def the_server(*, threads: int | None) -> WarmServer:
    """Return the one server, whichever threads are asked for: a job has its own from its environment."""
    if not _servers:
        _servers.append(LastingServer(threads=1))
    return _servers[0]


# A thread a worker: with torch's default, a thread a core in each, the workers of `-n 2` stand in each other's way
# (all tests on two cores: 403 s instead of 515 s). The models are so small that one alone gains nothing from two.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# A shell has what it runs in the background ignore Ctrl-C, and some tests press it.
signal.signal(signal.SIGINT, signal.default_int_handler)

# What waits for the disk protects from a power cut, which no test makes: 4 ms a file, thirty files a small run. In
# which order it is asked for is held by tests/runs/test_checkpoint_folders.py.
os.fsync = lambda descriptor: None  # type: ignore[assignment]

# Every checkpoint has its libraries' versions looked up, in files that do not change while tests run.
importlib.metadata.version = functools.cache(importlib.metadata.version)
importlib.metadata.metadata = functools.cache(importlib.metadata.metadata)

pytest_plugins = ["tests.support.run_fixtures"]

_LONG = {"slow": 3600, "processes": 900, "strategies": 1800, "slurm": 900, "vllm": 1800}
"""Marker -> the seconds after which such a test hangs; one without any has what pyproject.toml says."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give tests that are known to be long the time that they take."""
    for item in items:
        if longest := max((timeout_s for name, timeout_s in _LONG.items() if item.get_closest_marker(name)), default=0):
            item.add_marker(pytest.mark.timeout(longest))


_OURS_TO_SET = ("RLHF_CACHE", "WANDB", "HF_", "CUDA_VISIBLE_DEVICES", "NETRC")


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No login, cache or switch of the person who runs the tests; `sys.path`, and what is hidden, as they were."""
    for name in list(os.environ):
        if name.startswith(_OURS_TO_SET):
            monkeypatch.delenv(name)
    monkeypatch.setattr(sys, "path", list(sys.path))
    with forgetting():
        yield


@pytest.fixture(autouse=True)
def hub_has_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test asks the hub: it has whatever is named, unless a test brings a hub of its own."""
    monkeypatch.setattr(hub_lookup, "_asked", lambda *_: hub_lookup.HubAnswer("there"))


@pytest.fixture(autouse=True, scope="session")
def composed_quickly() -> None:
    """What is composed is what Hydra composes, and Hydra is not asked twice for the same: `by_hydra` does without."""
    compose.NotingLoader = QuickLoader  # type: ignore[misc]


@pytest.fixture(autouse=True, scope="session")
def one_server_for_all_sweeps() -> None:
    """What the jobs of sweeps are forks of is started once."""
    warm_processes.WarmServer = the_server  # type: ignore[assignment,misc]


@pytest.fixture(autouse=True, scope="session")
def refusals_are_watched() -> None:
    """Whatever a test has refused says what to type, and that helps; or it is marked as prose."""
    watch_refusals()


@pytest.fixture(autouse=True)
def what_is_suggested_helps(refusals_are_watched: None, request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test whose refusals suggest what does not help; a module with MADE_UP_HINTS writes hints of its own."""
    WRONG.clear()
    yield
    assert not WRONG or getattr(request.module, "MADE_UP_HINTS", False), "\n".join(WRONG)


@pytest.fixture
def by_hydra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Composition itself is tested: every file is read and merged by Hydra, as for a user."""
    monkeypatch.setattr(compose, "NotingLoader", NotingLoader)


_freeze, _unfreeze = gc.freeze, gc.unfreeze
# A run lays open to the collector, when it ends, all that was there before it: the next file's collection would walk
# torch and thousands of tests, which takes 0.9 s.
gc.freeze = gc.unfreeze = lambda: None


@pytest.fixture(autouse=True, scope="module")
def garbage_is_new() -> None:
    """What earlier files of tests left is collected, and what is still there is not walked again."""
    gc.collect()
    _freeze()


@pytest.fixture
def freezes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Runs hide and lay open what was there before them, as they do for a user."""
    monkeypatch.setattr(gc, "freeze", _freeze)
    monkeypatch.setattr(gc, "unfreeze", _unfreeze)
    yield
    _freeze()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory and an empty home, away from this repository's `conf`."""
    folder, home = tmp_path / "work", tmp_path / "home"
    folder.mkdir()
    home.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(home))
    return folder


@pytest.fixture
def write(place: Path) -> Callable[[str, str], Path]:
    """`write("conf/exp/mine.yaml", text)`: a file below the working directory, its folders made."""

    def call(name: str, text: str) -> Path:
        file = place / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        return file

    return call
