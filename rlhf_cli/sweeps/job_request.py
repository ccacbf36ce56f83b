"""What a sweep asks of the process that its jobs are forks of: which run, and the process to be while it trains."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class JobRequest:
    """One job to begin. `run` is its folder, `console` the file that it prints to; `resume` and `take_over` say how it
    goes on; the rest is what a command of its own would have had.
    """

    id: int
    run: str
    console: str
    resume: bool
    take_over: bool
    environment: dict[str, str]
    cwd: str
    argv: list[str]
    sys_path: list[str]
