"""Report a run to TensorBoard, trackio or MLflow with transformers' own callbacks."""

from __future__ import annotations

import copy
import json
import logging
import os
from collections.abc import Callable
from typing import Any, cast

import filelock
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.integrations import MLflowCallback, TensorBoardCallback, TrackioCallback, rewrite_logs

from rlhf_cli.runs.metrics_file import Event
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.tracking.tracked_run import Ending, TrackedRun, begun_in, is_number, mlflow_store
from rlhf_cli.tables.metrics import TrackerName

_MLFLOW_ID = "rlhf.run_id"


class Reporting:
    """A run in a reporting callback of transformers, which gets our configuration, not TRL's; no secrets, no NaN."""

    def __init__(self, tracker: TrackerName, run: TrackedRun, args: TrainingArguments) -> None:
        self._name: TrackerName = tracker
        self._inner: Any = _BUILD[tracker](run)
        named = {"tags": list(run.tags), "notes": run.notes, "group": run.group, "job_type": run.job_type}
        # MLflow refuses a parameter with a new value, so a resumed run reports no parameters again.
        reported = {} if tracker == "mlflow" and run.goes_on_from else {**run.config, **named}
        self._args = copy.copy(args)
        vars(self._args).update(
            project=run.project,
            run_name=run.label if tracker == "trackio" else run.name,  # trackio continues a run by its name
            trackio_static_space_id=False,  # publish no snapshot of a Space
            to_dict=lambda: reported,
            to_json_string=lambda: json.dumps(reported, indent=2),
        )
        self._inner.on_train_begin(self._args, TrainerState(is_world_process_zero=True), TrainerControl())

    def log(self, event: Event) -> None:
        """Report an event of metrics.jsonl."""
        numbers = {name: one for name, one in event.items() if name not in ("step", "time_s") and is_number(one)}
        shown = rewrite_logs(numbers) if self._name == "mlflow" else numbers  # the others rename by themselves
        state = TrainerState(is_world_process_zero=True, global_step=cast(int, event["step"]))
        self._inner.on_log(self._args, state, TrainerControl(), logs=shown)

    def finish(self, ending: Ending) -> None:
        """Close the tracker's run, which MLflow marks as failed or killed if it was."""
        if self._name == "mlflow" and ending != "finished":
            import mlflow

            mlflow.end_run({"failed": "FAILED", "preempted": "KILLED"}[ending])
        self._inner.on_train_end(self._args, TrainerState(is_world_process_zero=True), TrainerControl())


def _tensorboard(run: TrackedRun) -> TrainerCallback:
    """Return a callback that writes into `tensorboard/` of the run folder, without the steps after the checkpoint."""
    from torch.utils.tensorboard import SummaryWriter

    purge = run.goes_on_from + 1 if run.recorded_to > run.goes_on_from else None
    return TensorBoardCallback(SummaryWriter(str(run.path / "tensorboard"), purge_step=purge))


def _mlflow(run: TrackedRun) -> TrainerCallback:
    """Set the variables that MLflow's callback reads (the worker restores them), and find an earlier attempt."""
    folder = RunFolder(run.path)
    tags = {_MLFLOW_ID: run.run_id, "trainer": run.job_type, "mlflow.note.content": run.notes or ""}
    tags |= {"group": run.group} if run.group else {}
    os.environ |= {
        "MLFLOW_TRACKING_URI": mlflow_store(folder),
        "MLFLOW_EXPERIMENT_NAME": run.project,
        "MLFLOW_TAGS": json.dumps({**dict.fromkeys(run.tags, "true"), **tags}),
        "MLFLOW_FLATTEN_PARAMS": "TRUE",
    }
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")  # half a minute, not a quarter of an hour
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
    import mlflow

    logging.getLogger("mlflow").setLevel(logging.ERROR)  # it announces tables and experiments on stderr
    with filelock.FileLock(begun_in(folder) / ".mlflow.lock"):  # jobs that start at once would create the same tables
        mlflow.set_experiment(run.project)
    of_run = f"tags.`{_MLFLOW_ID}` = '{run.run_id}'"
    known = mlflow.search_runs(experiment_names=[run.project], filter_string=of_run, output_format="list")
    if known:
        os.environ["MLFLOW_RUN_ID"] = known[0].info.run_id
    return MLflowCallback()


_BUILD: dict[str, Callable[[TrackedRun], TrainerCallback]] = {  # tracker -> what builds its callback for a run
    "tensorboard": _tensorboard,
    "trackio": lambda run: TrackioCallback(),
    "mlflow": _mlflow,
}
