"""Describe, run, sweep and compare RLHF experiments from the command line.

In notebooks, `load_runs("runs/quickstart")` returns the runs and their metrics as pandas frames
(docs/how-to/compare.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlhf_cli.analysis.comparison.frames import LoadedRuns, Place

__version__ = "0.1.0"


def load_runs(*places: Place, metrics: Sequence[str] | None = None) -> LoadedRuns:
    """Read runs into frames: `.runs` has one row per run; `.metrics` one row per log event, one column per metric.

    A place is a run folder, a sweep, a folder of runs or `wandb:entity/project[/group]`; the default is `runs/`.
    `metrics` are the names to read; None reads all. Raises RunError for a place without runs.
    """
    from rlhf_cli.analysis.comparison.frames import load_runs as load  # imports pandas and numpy

    return load(*places, metrics=metrics)
