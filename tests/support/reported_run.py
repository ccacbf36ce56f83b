"""Report a logged run to TensorBoard, trackio or MLflow, with the calls that a Trainer makes."""

from __future__ import annotations

from typing import Any

from transformers import TrainerControl, TrainerState, TrainingArguments

from rlhf_cli.runs.metrics_file import read_metrics
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.tracking.mirror import Mirror, tracked
from rlhf_cli.runs.tracking.tracking_plan import TrackerName, TrackingPlan


class StandInTrainer:
    """Keeps the callback that is added to it."""

    callback: Any

    def add_callback(self, callback: Any) -> None:
        self.callback = callback


def report(
    folder: RunFolder,
    tracker: TrackerName,
    *,
    goes_on_from: int = 0,
    recorded_to: int = 0,
    error: BaseException | None = None,
) -> list[str]:
    """Report the events of a run folder after a step, and return what was printed; end with `error`, if given."""
    printed: list[str] = []
    mirror, trainer = Mirror(folder, TrackingPlan("offline", tracker=tracker), say=printed.append), StandInTrainer()
    args = TrainingArguments(str(folder.path), use_cpu=True, report_to=[])
    state, control = TrainerState(is_world_process_zero=True), TrainerControl()
    with tracked(mirror, folder, trainer, goes_on_from=goes_on_from, recorded_to=recorded_to):  # type: ignore[arg-type]
        trainer.callback.on_train_begin(args, state, control)
        for event in read_metrics(folder.metrics):
            state.global_step = int(str(event["step"]))
            if state.global_step > goes_on_from:
                trainer.callback.on_log(args, state, control, logs={**event})
        if error is not None:
            raise error
    return printed
