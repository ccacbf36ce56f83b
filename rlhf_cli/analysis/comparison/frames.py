"""Give runs and their metrics as pandas frames."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rlhf_cli.analysis.comparison.comparison import Comparison, ComparisonOptions, compare
from rlhf_cli.analysis.comparison.logged_run import LoggedRun, differences, read_runs
from rlhf_cli.analysis.comparison.metric_columns import MetricColumns
from rlhf_cli.errors import RlhfError
from rlhf_cli.runs.run_folder import RunFolder, runs_in

if TYPE_CHECKING:
    import pandas as pd

Place = str | os.PathLike[str]
"""A run folder, a sweep, or a folder of runs."""


@dataclass(frozen=True)
class LoadedRuns:
    """Runs that were read together.

    `runs` has one row per run, indexed by its name (the differences: `weight=0.5,seed=2`), with the columns `place`,
    `state`, `step`, `max_steps`, `trainer`, and one for each configuration key that differs.
    `metrics` has one row per run, step and log event, indexed by `run` and `step`, and one float column per metric, NaN
    if the event lacks it or logged null. `problems` are the errors for folders that could not be read.
    """

    runs: pd.DataFrame
    metrics: pd.DataFrame
    problems: tuple[RlhfError, ...]
    logged: tuple[LoggedRun, ...]

    def compare(self, asked: ComparisonOptions | None = None) -> Comparison:
        """Return the result of `rlhf compare` for these runs."""
        return compare(self.logged, asked)


def load_runs(*places: Place, metrics: Sequence[str] | None = None) -> LoadedRuns:
    """Read the runs in these places into frames; `metrics` are the names to read, None for all.

    Raise RunError for a place without runs. A run that cannot be read is added to the problems.
    """
    import pandas as pd

    folders: dict[RunFolder, None] = {}
    wanted = None if metrics is None else frozenset(metrics).__contains__
    for place in places or ("runs",):
        folders.update(dict.fromkeys(runs_in(Path(place).expanduser())))
    runs, problems = read_runs(folders, wanted=wanted)
    facts, keys = ["place", "state", "step", "max_steps", "trainer"], differences(runs)
    rows = [
        [run.name, *(getattr(run, fact) for fact in facts), *(run.settings.get(key) for key in keys)] for run in runs
    ]
    of_runs = pd.DataFrame(rows, columns=["run", *facts, *keys]).set_index("run")
    frames = [_of_run(run.metrics).assign(run=run.name) for run in runs if len(run.metrics)]
    if frames:
        of_metrics = pd.concat(frames).set_index("run", append=True).swaplevel()
    else:
        of_metrics = pd.DataFrame(index=pd.MultiIndex.from_arrays([[], []], names=["run", "step"]))
    return LoadedRuns(of_runs, of_metrics, tuple(problems), tuple(runs))


def _of_run(metrics: MetricColumns) -> pd.DataFrame:
    """Combine the series of one run by step; the n-th event of a step with several events is the n-th row."""
    import pandas as pd

    columns = []
    for name, series in metrics.items():
        _, first, which = np.unique(series.steps, return_index=True, return_inverse=True)
        nth = np.arange(len(series)) - first[which]
        index = pd.MultiIndex.from_arrays([series.steps, nth], names=["step", "nth"])
        columns.append(pd.Series(series.values, index=index, name=name))
    return pd.concat(columns, axis=1).sort_index().droplevel("nth")
