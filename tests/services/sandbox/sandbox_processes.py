"""A look at what runs on this machine, for tests of what the sandbox leaves behind."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from rlhf_cli.services.sandbox.running import ProgramResult

Run = Callable[..., ProgramResult]


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
