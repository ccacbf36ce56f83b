"""Keep a mirror open during a training run, and tell it how the run ended."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from rlhf_cli.errors import Preempted
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.tracking.mirror import Mirror, Say, Timings
from rlhf_cli.tracking.tracked_run import tracked_run
from rlhf_cli.tracking.tracker import Ending, Tracker
from rlhf_cli.tracking.tracking_plan import TrackingPlan


def mirror_of(folder: RunFolder, plan: TrackingPlan, *, say: Say, unique_prompts: bool = False) -> Mirror:
    """Return the mirror of a plan, not yet started; with mode none it does nothing."""
    tracker = None if plan.mode == "none" else _tracker(plan)
    return Mirror(plan.tracker, tracker, folder, say=say, unique_prompts=unique_prompts)


@contextlib.contextmanager
def tracked(
    mirror: Mirror, folder: RunFolder, *, timings: Timings = dict, goes_on_from: int = 0, recorded_to: int = 0
) -> Iterator[None]:
    """Keep a mirror open during a training run and tell it how the run ended.

    `goes_on_from` is the checkpoint's step at which training starts, `recorded_to` the last step that an earlier
    attempt logged.
    """
    if not mirror.mirrors:
        yield
        return
    mirror.start(tracked_run(folder, goes_on_from=goes_on_from, recorded_to=recorded_to), timings)
    ending: Ending = "failed"
    try:
        yield
        ending = "finished"
    except (Preempted, KeyboardInterrupt):
        ending = "preempted"
        raise
    finally:
        mirror.finish(ending)


def _tracker(plan: TrackingPlan) -> Tracker:
    """Return the tracker of a plan; it imports its package when it starts."""
    if plan.tracker == "tensorboard":
        from rlhf_cli.tracking.tensorboard_tracker import TensorBoardTracker

        return TensorBoardTracker()
    if plan.tracker == "trackio":
        from rlhf_cli.tracking.trackio_tracker import TrackioTracker

        return TrackioTracker()
    if plan.tracker == "mlflow":
        from rlhf_cli.tracking.mlflow_tracker import MlflowTracker

        return MlflowTracker()
    from rlhf_cli.tracking.wandb_tracker import WandbTracker

    return WandbTracker("online" if plan.mode == "online" else "offline")
