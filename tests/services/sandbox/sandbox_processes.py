"""A look at what runs on this machine, for tests of what the sandbox leaves behind."""

from __future__ import annotations

from collections.abc import Callable

import psutil

from rlhf_cli.services.sandbox.running import ProgramResult

Run = Callable[..., ProgramResult]


def processes_with(marker: str) -> list[int]:
    """Return the processes whose command line contains the marker."""
    return [one.pid for one in psutil.process_iter(["cmdline"]) if marker in " ".join(one.info["cmdline"] or [])]
