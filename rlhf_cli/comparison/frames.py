"""Return runs and their metrics as pandas frames for notebooks: `rlhf_cli.load_runs("runs/quickstart")`."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rlhf_cli.comparison.comparison import Asked, Comparison, compare
from rlhf_cli.comparison.logged_run import LoggedRun, named, read_runs
from rlhf_cli.comparison.metric_columns import MetricColumns
from rlhf_cli.comparison.wandb_runs import is_wandb, read_wandb
from rlhf_cli.comparison.what_differs import differences
from rlhf_cli.errors import RlhfError, RunError
from rlhf_cli.runs.found_runs import runs_in
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.suggest import nearest

if TYPE_CHECKING:
    import pandas as pd

_SHOWN = 12

Place = str | os.PathLike[str]
"""A run folder, a sweep, a folder of runs, or `wandb:entity/project[/group]`."""


@dataclass(frozen=True)
class LoadedRuns:
    """Runs that were read together.

    `runs` has one row per run, indexed by its name (the differences: `weight=0.5,seed=2`), with the columns `place`,
    `state`, `step`, `max_steps`, `trainer`, and one for each configuration key that differs, under its full name.
    `metrics` has one row per run, step and log event, indexed by `run` and `step`, and one float column per metric, NaN
    if the event lacks it or logged null. `problems` are the errors for folders that could not be read.
    """

    runs: pd.DataFrame
    metrics: pd.DataFrame
    problems: tuple[RlhfError, ...]
    logged: tuple[LoggedRun, ...]

    def compare(self, asked: Asked | None = None) -> Comparison:
        """Return the result of `rlhf compare` for these runs."""
        return compare(self.logged, asked)


def load_runs(*places: Place, metrics: Sequence[str] | None = None) -> LoadedRuns:
    """Read the runs in these places into frames; `metrics` are the names to read, None for all.

    Raise RunError for a place without runs. A run that cannot be read is added to the problems. A metric that no run
    has is added too, with a warning.
    """
    import pandas as pd

    folders: dict[RunFolder, None] = {}
    elsewhere: list[LoggedRun] = []
    wanted = None if metrics is None else frozenset(metrics).__contains__
    for place in places or ("runs",):
        if is_wandb(str(place)):
            elsewhere += read_wandb(str(place), wanted=wanted)
        else:
            folders.update(dict.fromkeys(runs_in(Path(place).expanduser())))
    runs, problems = read_runs(folders, wanted=wanted)
    runs = named([*runs, *elsewhere])
    for missing in _logged_by_none(metrics or (), runs, folders):
        warnings.warn(str(missing), stacklevel=3)
        problems = [*problems, missing]
    keys = differences(runs) if runs else []
    rows = [
        {
            "run": run.name,
            "place": run.place,
            "state": run.state,
            "step": run.step,
            "max_steps": run.max_steps,
            "trainer": run.trainer,
            **{key: run.settings.get(key) for key in keys},
        }
        for run in runs
    ]
    columns = ["run", "place", "state", "step", "max_steps", "trainer", *keys]
    frames = [_of_run(run.metrics).assign(run=run.name) for run in runs if len(run.metrics)]
    if frames:
        of_metrics = pd.concat(frames).set_index("run", append=True).swaplevel()
    else:
        of_metrics = pd.DataFrame(index=pd.MultiIndex.from_arrays([[], []], names=["run", "step"]))
    return LoadedRuns(pd.DataFrame(rows, columns=columns).set_index("run"), of_metrics, tuple(problems), tuple(runs))


def _logged_by_none(
    metrics: Sequence[str], runs: Sequence[LoggedRun], folders: Iterable[RunFolder]
) -> Iterator[RunError]:
    """Yield an error for every requested metric that no run has, with the most similar existing name."""
    absent = [name for name in metrics if all(name not in run.metrics for run in runs)]
    if not absent or not runs:
        return
    everything, _ = read_runs(folders, wanted=None)
    names = list(dict.fromkeys(name for run in everything for name in run.metrics))
    for name in absent:
        yield RunError(
            f"no run logs the metric {name!r}",
            got=f"metrics={list(metrics)}",
            expected=f"some of {', '.join(names[:_SHOWN])}{', ...' if len(names) > _SHOWN else ''}" if names else None,
            hint=nearest(name, names),
        )


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
