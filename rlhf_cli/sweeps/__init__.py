"""Sweeps: several runs of one command. Define, name, run and resume their jobs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SweepOptions:
    """How a sweep runs: `at_once` jobs, `watch` the metric in the table (None: the reward, else the loss)."""

    at_once: int = 1
    watch: str | None = None
    dry_run: bool = False
    only_failed: bool = False


@dataclass(frozen=True)
class ResumeOptions:
    """What the user allows: changed keys, sections or kinds of files; another machine's run; foreign code."""

    allowed: tuple[str, ...] = ()
    take_over: bool = False
    trust: bool = False
