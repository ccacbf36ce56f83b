"""The request that a sweep sends to the process that forks its jobs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class JobRequest:
    """A job to start.

    `run` is its folder, `console` the file for its output; `resume` and `take_over` say how it resumes. The other
    fields are the environment, folder and arguments that its own command would have had.
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
