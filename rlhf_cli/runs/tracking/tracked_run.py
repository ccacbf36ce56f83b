"""Describe a run for its tracker: whether and under which names it appears, and where to look at it afterwards."""

from __future__ import annotations

import hashlib
import math
import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeGuard

from rlhf_cli.runs.metrics_file import Event
from rlhf_cli.runs.run_folder import RunFolder, read_json
from rlhf_cli.runs.tracking.wandb_files import unsent, why_not_online
from rlhf_cli.tables.metrics import TrackerName, TrackingMode
from rlhf_cli.text.json_values import JsonTree, section
from rlhf_cli.text.redaction import redacted, redacted_tree

Ending = Literal["finished", "failed", "preempted"]
STEP = "train/global_step"  # the x-axis of every metric, as in transformers
_OF_PROVENANCE = ("command", "git", "versions", "starting_model", "world_size", "num_parameters")
"""Keys of provenance.json to show beside the configuration; the rest is in the run folder."""
_PACKAGES = ("rlhf", "trl", "transformers", "torch")
_EVALUATION = "eval_"
_AT_THE_END = ("train_runtime", "train_samples_per_second", "train_steps_per_second", "train_loss", "total_flos")
"""Transformers logs these once, at the end of training; they have no step and keep their names."""
_HOUSEKEEPING = re.compile(  # how the work went, and not what was learned: counts, clocks and speeds
    r"(?:eval_(?:\w+_)?)?rewards/[^/]+/(?:weight|excluded|errors|timeouts|calls|calls_saved|seconds)"
    r"|passes/.*|epoch|num_tokens|time_s|(?:eval_(?:\w+_)?)?step_time|eval_(?:\w+_)?runtime|eval_\w+_per_second"
)


@dataclass(frozen=True)
class TrackingPlan:
    """How a tracker will record; only wandb has offline. `notice` explains why the mode is not the requested one."""

    mode: TrackingMode
    notice: str | None = None
    tracker: TrackerName = "wandb"

    @property
    def in_words(self) -> str:
        if self.mode == "none":
            return "none"
        return f"wandb, {self.mode}" if self.tracker == "wandb" else self.tracker


def plan_tracking(mode: TrackingMode, tracker: TrackerName = "wandb") -> TrackingPlan:
    """Decide how to record: online only with a login and a server that answers."""
    if mode != "online" or tracker != "wandb":
        return TrackingPlan(mode, tracker=tracker)
    if (problem := why_not_online()) is None:
        return TrackingPlan("online")
    offline = "recording offline instead; `rlhf sync RUN` sends it later, track=wandb_offline avoids this notice"
    return TrackingPlan("offline", f"{problem.what} ({problem.hint or problem.got}): {offline}")


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker gets when a run starts or resumes; contains no secrets."""

    path: Path
    run_id: str
    name: str  # shows the differences in a sweep
    label: str  # is unique
    group: str | None
    job_type: str
    project: str
    entity: str | None
    tags: tuple[str, ...]
    notes: str | None
    config: JsonTree
    goes_on_from: int = 0  # step of the checkpoint
    recorded_to: int = 0  # last step that an earlier attempt logged


def tracked_run(folder: RunFolder, *, goes_on_from: int = 0, recorded_to: int = 0) -> TrackedRun:
    """Return the description of the run in `folder` for a tracker; see TrackedRun for the steps."""
    config = folder.read_config()
    track = section(config, "track")
    provenance = read_json(folder.provenance)
    choices = section(provenance, "choices")
    own = track.get("tags")
    tags = [*(choices.get(group) for group in ("exp", "model", "data")), *(own if isinstance(own, list) else [])]
    shown = {name: provenance[name] for name in _OF_PROVENANCE if provenance.get(name) is not None}
    versions = section(provenance, "versions")
    shown["versions"] = {name: versions[name] for name in _PACKAGES if name in versions}
    entity, notes = track.get("entity"), track.get("notes")
    name, group = folder.path.name, folder.sweep_group  # a sweep's jobs: their overrides, or a number
    return TrackedRun(
        path=folder.path,
        run_id=str(provenance.get("wandb_id") or hashlib.sha256(str(folder.path).encode()).hexdigest()[:10]),
        name=redacted(folder.label if group is None or name.isdigit() else name),
        label=redacted(folder.label),
        group=redacted(group) if group else None,
        job_type=str(section(config, "trainer").get("name")),
        project=redacted(str(track.get("project") or "rlhf")),
        entity=redacted(str(entity)) if entity else None,
        tags=tuple(dict.fromkeys(redacted(str(tag)) for tag in tags if tag)),
        notes=redacted(str(notes)) if notes else None,
        config=redacted_tree({**config, "provenance": shown}),
        goes_on_from=goes_on_from,
        recorded_to=max(recorded_to, goes_on_from),
    )


def shown_name(metric: str) -> str:
    """Return a metric's name in wandb: `train/loss`, `eval/greedy/total`, `housekeeping/epoch`."""
    if _HOUSEKEEPING.fullmatch(metric):
        return f"housekeeping/{metric}"
    if metric.startswith(_EVALUATION):
        return f"eval/{metric.removeprefix(_EVALUATION)}"
    return metric if "/" in metric else f"train/{metric}"


def name_in_log(shown: str) -> str:
    """Return the name in metrics.jsonl of a metric in wandb; earlier versions put `train/` before every name."""
    plain = shown.removeprefix("housekeeping/").removeprefix("train/")
    return f"{_EVALUATION}{plain.removeprefix('eval/')}" if plain.startswith("eval/") else plain


def at_the_end(event: Event) -> dict[str, float]:
    """Return the metrics that transformers logs once at the end of training; {} for any other event."""
    return {name: float(value) for name in _AT_THE_END if is_number(value := event.get(name))}


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether a value is a finite number; bools are not numbers."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def begun_in(folder: RunFolder) -> Path:
    """Return the folder in which the run was started, or the current one if that is gone."""
    cwd = read_json(folder.provenance).get("cwd")
    begun = Path(cwd) if isinstance(cwd, str) else Path.cwd()
    return begun if begun.is_dir() else Path.cwd()


def mlflow_store(folder: RunFolder) -> str:
    """Return MLFLOW_TRACKING_URI, else `mlflow.db` in the folder in which the run was started."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{begun_in(folder) / 'mlflow.db'}"


def where_to_look(folder: RunFolder) -> dict[str, str]:
    """Return command -> description for a run's tracker; {} without a tracker or if wandb has all data."""
    track = section(folder.read_config(), "track")
    if track.get("mode") == "none":
        return {}
    if unsent(folder.path):
        return {f"rlhf sync {folder.typed}": "send the record to wandb"}
    commands = {
        "tensorboard": f"tensorboard --logdir {shlex.quote(os.path.dirname(folder.shown))}",
        "trackio": f"trackio show --project {shlex.quote(str(track.get('project')))}",
        "mlflow": f"mlflow ui --backend-store-uri {shlex.quote(mlflow_store(folder))}",
    }
    command = commands.get(str(track.get("tracker")))
    return {command: "compare its curves with others"} if command is not None else {}
