"""Mirror a run in MLflow: in the store of MLFLOW_TRACKING_URI, else in mlflow.db in the starting folder."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import filelock

from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.tracking.tracker import URI_VARIABLE, Ending, Row, TrackedRun, begun_in, flat, store_uri

if TYPE_CHECKING:
    from mlflow import MlflowClient

_OURS = "rlhf.run_id"
_STATUS = {"finished": "FINISHED", "failed": "FAILED", "preempted": "KILLED"}
_NOT_IN_A_NAME = re.compile(r"[^\w\-. :/]")
_LONGEST = 500
_PARAMS_AT_ONCE = 100
_PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}
"""Give up on an unreachable server after half a minute, not after MLflow's quarter of an hour."""


class MlflowTracker:
    """An MLflow run in the experiment `track.project`; uses MLflow's client, so the user's active run is untouched."""

    def start(self, run: TrackedRun) -> int:
        """Create a run, or resume the one with our id."""
        for name, value in _PATIENCE.items():
            os.environ.setdefault(name, value)
        import mlflow

        logging.getLogger("mlflow").setLevel(logging.WARNING)
        where, uri = begun_in(RunFolder(run.path)), store_uri(RunFolder(run.path))
        # Jobs that start at the same moment would create the same tables.
        with filelock.FileLock(where / ".mlflow.lock"):
            self._client: MlflowClient = mlflow.MlflowClient(tracking_uri=uri)
            experiment = self._client.get_experiment_by_name(run.project)
            artifacts = None if URI_VARIABLE in os.environ else (where / "mlartifacts").as_uri()
            experiment_id = (
                experiment.experiment_id
                if experiment is not None
                else self._client.create_experiment(run.project, artifact_location=artifacts)
            )
        known = self._client.search_runs([experiment_id], f"tags.`{_OURS}` = '{run.run_id}'", max_results=1)
        if known:
            self._id = known[0].info.run_id
            self._client.update_run(self._id, status="RUNNING")
            return run.recorded_to
        self._id = self._client.create_run(experiment_id, run_name=run.name, tags=_tags(run)).info.run_id
        self._log_params(run)
        return run.goes_on_from

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log the metrics of a step in one request."""
        from mlflow.entities import Metric

        now_ms = int(time.time() * 1000)
        logged = [Metric(metric_name(name), value, now_ms, step) for name, value in metrics.items()]
        self._client.log_batch(self._id, metrics=logged)

    def table(self, name: str, step: int, rows: Sequence[Row]) -> None:
        """Log a table as the artifact NAME/STEP.json, in MLflow's table format."""
        columns = list(rows[0])
        data = [[row[column] for column in columns] for row in rows]
        self._client.log_dict(self._id, {"columns": columns, "data": data}, f"{name}/{step:06d}.json")

    def finish(self, summary: Mapping[str, float], ending: Ending) -> None:
        """Log the summary as metrics of step 0 and end the run."""
        self.log(0, summary)
        self._client.set_terminated(self._id, status=_STATUS[ending])

    def _log_params(self, run: TrackedRun) -> None:
        from mlflow.entities import Param

        params = [Param(_plain_name(key), str(value)[:_LONGEST]) for key, value in flat(run.config).items()]
        for start in range(0, len(params), _PARAMS_AT_ONCE):
            self._client.log_batch(self._id, params=params[start : start + _PARAMS_AT_ONCE])
        self._client.log_dict(self._id, dict(run.config), "config.json")


def metric_name(name: str) -> str:
    """Return a metric's name as MLflow accepts it: `pass@4` is `pass_at_4`, a bound of `total` is `total.low`.

    MLflow's file stores keep a metric in a file of its name, which cannot also be a folder.
    """
    for bound in ("low", "high"):
        if name.endswith(f"/{bound}"):
            name = f"{name.removesuffix(f'/{bound}')}.{bound}"
    return _plain_name(name.replace("@", "_at_"))


def _plain_name(name: str) -> str:
    return _NOT_IN_A_NAME.sub("_", name)


def _tags(run: TrackedRun) -> dict[str, str]:
    tags = {_OURS: run.run_id, "trainer": run.job_type, "mlflow.note.content": run.notes or ""}
    tags |= {"group": run.group} if run.group else {}
    return {**{_plain_name(tag): "true" for tag in run.tags}, **tags}
