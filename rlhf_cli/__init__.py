"""Describes, runs, sweeps and compares RLHF experiments from the command line.

For notebooks `load_runs("runs/quickstart")` gives the runs and their metrics as pandas' frames (docs/compare.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlhf_cli.comparison.frames import LoadedRuns, Place

__version__ = "0.1.0"


def load_runs(*places: Place, metrics: Sequence[str] | None = None) -> LoadedRuns:
    """Read runs into frames: `.runs` has a row a run, `.metrics` a row a log event, a column a metric.

    A place is a run folder, a sweep, a folder of runs or `wandb:entity/project[/group]`; none means `runs/`. `metrics`
    are the names to read, None for all. Raises RunError for a place without runs.
    """
    from rlhf_cli.comparison.frames import load_runs as load  # pandas and numpy come with it

    return load(*places, metrics=metrics)
