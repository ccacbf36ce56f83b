"""Says what the sandbox's launcher is told. Names for the type checker only: the launcher's process does not import it.

A job goes to the launcher as JSON.
"""

from __future__ import annotations

from typing import TypedDict


class Program(TypedDict):
    """The program's text, and what it may use up."""

    source: str
    timeout_s: float
    memory_bytes: int
    max_processes: int
    max_file_bytes: int


class Job(Program):
    """A program, and how it is closed in.

    `mode` is `bubblewrap`, `namespaces` or `limits`; `root` is an empty folder, `visible` the paths that the program
    gets to see, `user` the one that it becomes where root starts it.
    """

    mode: str
    root: str
    visible: list[str]
    user: int
    python: str
    environment: dict[str, str]
