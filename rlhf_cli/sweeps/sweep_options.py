"""How a sweep runs, as typed on the command line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rlhf_cli.jobs.usage import Options

SWEEP_FILE = "sweep.json"


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


def is_sweep(folder: Path) -> bool:
    """Return whether a folder is a sweep's."""
    return (folder / SWEEP_FILE).is_file()


def sweep_options(options: Options) -> SweepOptions:
    """Return the sweep options from the command line. Raise ConfigError if -j is not a number of at least 1."""
    return SweepOptions(
        at_once=options.number("-j") or 1,
        watch=options.text("--watch"),
        dry_run=options.on("--dry-run"),
        only_failed="--failed" in options.usage.flags and options.on("--failed"),
    )
