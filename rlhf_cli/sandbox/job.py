"""Define a job for the sandbox's launcher, for type checking only: the launcher does not import this module.

A job is sent to the launcher as JSON.
"""

from __future__ import annotations

from typing import TypedDict


class Program(TypedDict):
    """The program's text and its limits."""

    source: str
    timeout_s: float
    memory_bytes: int
    max_processes: int
    max_file_bytes: int


class Job(Program):
    """A program and its isolation.

    `mode` is `bubblewrap`, `namespaces` or `limits`; `root` is an empty folder, `visible` the paths that the program
    can see, `user` the user id that it changes to if root starts it.
    """

    mode: str
    root: str
    visible: list[str]
    user: int
    python: str
    environment: dict[str, str]
