"""Give runs and their metrics as pandas frames, from folders or from wandb."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rlhf_cli.analysis.comparison.comparison import Comparison, ComparisonOptions, compare
from rlhf_cli.analysis.comparison.logged_run import LoggedRun, differences, flat, named, read_runs, weights_of
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.errors import RlhfError, RunError
from rlhf_cli.runs.metric_arrays import MetricColumns, Wanted
from rlhf_cli.runs.run_folder import RunFolder, runs_in
from rlhf_cli.runs.run_status import FAILED, FINISHED, KILLED, RUNNING
from rlhf_cli.runs.tracking.tracked_run import name_in_log
from rlhf_cli.text.json_values import JsonTree, section

if TYPE_CHECKING:
    import pandas as pd
    from wandb.apis.public import Api, Run

PREFIX = "wandb:"
_TIMEOUT_S = 30
_STATES = {"finished": FINISHED, "failed": FAILED, "crashed": KILLED, "killed": KILLED, "running": RUNNING}
_STEPS = ("step", "train/global_step", "global_step", "_step")


def is_wandb(word: str) -> bool:
    """Return whether the argument is `wandb:...`."""
    return word.startswith(PREFIX)


def read_wandb(word: str, *, wanted: Wanted | None = None, api: Api | None = None) -> list[LoggedRun]:
    """Return the runs of a project, or of one group if the word has three parts; not yet named by differences.

    Raise RunError if the word has another form, if wandb is unreachable, or if it has no such runs.
    """
    parts = word.removeprefix(PREFIX).strip("/").split("/")
    if len(parts) < 2 or not all(parts):
        expected = "wandb:entity/project or wandb:entity/project/group"
        hint = "rlhf compare wandb:my-team/rlhf/quickstart/20260131-101500"
        raise RunError("this does not name runs of wandb", got=word, expected=expected, hint=hint)
    path, group = "/".join(parts[:2]), "/".join(parts[2:])
    try:
        if api is None:
            import wandb

            api = wandb.Api(timeout=_TIMEOUT_S)
        found = api.runs(path, filters={"group": group} if group else None)
        # A group also holds runs that do not train, such as the one that logged the sweep's report.
        runs = [_logged(run, path, wanted) for run in found if "trainer" in run.config]
    except Exception as error:  # wandb raises its own, those of requests and plain ValueErrors
        got = str(error).splitlines()[0] if str(error) else type(error).__name__
        expected = "a login (`wandb login`, or WANDB_API_KEY), a network, and a project that you may read"
        advice = "rlhf compare runs/...: run folders hold the same metrics and need no network"
        raise RunError("wandb did not answer", where=word, got=got, expected=expected, advice=advice) from error
    if not runs:
        raise RunError("wandb has no such runs", got=word, hint=f"rlhf compare wandb:{path}" if group else None)
    return runs


def _logged(run: Run, path: str, wanted: Wanted | None) -> LoggedRun:
    # wandb's configuration also contains TRL's arguments
    config: JsonTree = {key: value for key, value in run.config.items() if key in Experiment.model_fields}
    metrics = MetricColumns(wanted)
    for row in run.scan_history():
        step = next((value for name in _STEPS if isinstance(value := row.get(name), int | float)), None)
        if step is not None:  # the names of metrics.jsonl, without the sections of wandb
            logged = {key: value for key, value in row.items() if key[0] != "_" and key not in _STEPS}
            plain = {name_in_log(key): value for key, value in logged.items()}
            metrics.take(int(step), {name: value for name, value in plain.items() if value is not None})
    max_steps = section(section(config, "trainer"), "args").get("max_steps")
    return LoggedRun(
        name=run.name or run.id,
        place=f"{PREFIX}{path}/{run.id}",
        state=_STATES.get(run.state, run.state),
        step=metrics.last_step,
        max_steps=max_steps if isinstance(max_steps, int) else None,
        settings=dict(flat(config)),
        weights=weights_of(config),
        trainer=str(section(config, "trainer").get("name", "?")),
        metrics=metrics,
        provenance=section(run.config, "provenance"),
    )


Place = str | os.PathLike[str]
"""A run folder, a sweep, a folder of runs, or `wandb:entity/project[/group]`."""


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
    elsewhere: dict[str, LoggedRun] = {}
    wanted = None if metrics is None else frozenset(metrics).__contains__
    for place in places or ("runs",):
        if is_wandb(str(place)):
            elsewhere |= {run.place: run for run in read_wandb(str(place), wanted=wanted)}
        else:
            folders.update(dict.fromkeys(runs_in(Path(place).expanduser())))
    runs, problems = read_runs(folders, wanted=wanted)
    runs = named([*runs, *elsewhere.values()])
    facts, keys = ["place", "state", "step", "max_steps", "trainer"], differences(runs)
    rows = [
        [run.name, *(getattr(run, fact) for fact in facts), *(run.settings.get(key) for key in keys)] for run in runs
    ]
    of_runs = pd.DataFrame(rows, columns=["run", *facts, *keys]).set_index("run")
    frames = {}
    for run in runs:
        columns = []
        for name in run.metrics:
            series = run.metrics.series(name)
            # The n-th event of a step with several events is the n-th row.
            _, first, which = np.unique(series.steps, return_index=True, return_inverse=True)
            nth = np.arange(len(series)) - first[which]
            index = pd.MultiIndex.from_arrays([series.steps, nth], names=["step", "nth"])
            columns.append(pd.Series(series.values, index=index, name=name))
        if columns:
            frames[run.name] = pd.concat(columns, axis=1).sort_index().droplevel("nth")
    of_metrics = pd.DataFrame(index=pd.MultiIndex.from_arrays([[], []], names=["run", "step"]))
    if frames:
        of_metrics = pd.concat(frames, names=["run"])
    return LoadedRuns(of_runs, of_metrics, tuple(problems), tuple(runs))
