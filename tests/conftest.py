"""Shared by all tests: an environment of their own."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rlhf_cli.redaction import forgetting

# A thread a worker: with torch's default, a thread a core in each, the workers of `-n 2` stand in each other's way
# (all tests on two cores: 403 s instead of 515 s). The models are so small that one alone gains nothing from two.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# A shell has what it runs in the background ignore Ctrl-C, and some tests press it.
signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ["tests.support.run_fixtures"]

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


@pytest.fixture(autouse=True, scope="module")
def garbage_is_new() -> None:
    """Every start of a training collects garbage; torch and thousands of tests need not be walked each time."""
    gc.collect()
    gc.freeze()


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
