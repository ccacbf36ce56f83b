"""A look at what runs on this machine, for tests of what the sandbox leaves behind."""

from __future__ import annotations

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
