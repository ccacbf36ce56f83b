"""Sweeps: several runs of one command. Define, name, run and resume their jobs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SweepOptions:
    """How a sweep runs.

    `at_once` is the number of concurrent jobs. `watch` is the metric in the table (None: the reward, else the loss).
    `dry_run` starts nothing; `only_failed` resumes failed jobs only.
    """

    at_once: int = 1
    watch: str | None = None
    dry_run: bool = False
    only_failed: bool = False


@dataclass(frozen=True)
class ResumeOptions:
    """What the user allows.

    `allowed` are changed keys, sections or kinds of files; `take_over` permits taking over a run of another machine;
    `trust` permits code from a run folder made by another user.
    """

    allowed: tuple[str, ...] = ()
    take_over: bool = False
    trust: bool = False
