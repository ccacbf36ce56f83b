"""The sandbox in each kind that this machine can make, and a look at what runs here."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from rlhf_cli.errors import RewardError
from rlhf_cli.rewards.sandbox import Isolation, Outcome, protections, run_code

Run = Callable[..., Outcome]
MODES: tuple[Isolation, ...] = ("bubblewrap", "namespaces", "limits")


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> Isolation:
    wanted: Isolation = request.param
    try:
        protections(wanted)
    except RewardError as error:
        pytest.skip(f"{wanted} does not work here: {error.got}")
    return wanted


@pytest.fixture
def run(mode: Isolation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """`run_code` in one mode, with temporary folders of its own."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return partial(run_code, isolation=mode, timeout_s=5.0)


def processes_with(marker: str) -> list[int]:
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if marker.encode() in (folder / "cmdline").read_bytes():
                    found.append(int(folder.name))
            except OSError:
                continue
    return found


def gone(marker: str, within_s: float = 3.0) -> bool:
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        if not processes_with(marker):
            return True
        time.sleep(0.02)
    return False
