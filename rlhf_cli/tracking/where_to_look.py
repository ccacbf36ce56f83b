"""Suggest commands that show a run in its tracker, or upload it."""

from __future__ import annotations

import os
import shlex

from rlhf_cli.json_values import section
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.tracking.mlflow_store import store_uri
from rlhf_cli.tracking.wandb_records import unsent


def where_to_look(folder: RunFolder) -> dict[str, str]:
    """Return command -> description for a run's tracker; {} without a tracker or if wandb has all data."""
    track = section(folder.read_config(), "track")
    project = str(track.get("project"))
    if track.get("mode") == "none":
        return {}
    if unsent(folder.path):
        return {f"rlhf sync {folder.shown}": "send it to wandb: it was recorded here"}
    match track.get("tracker"):
        case "tensorboard":
            return {f"tensorboard --logdir {os.path.dirname(folder.shown)}": "its curves beside the others'"}
        case "trackio":
            return {f"trackio show --project {shlex.quote(project)}": "its curves beside the others'"}
        case "mlflow":
            store = shlex.quote(store_uri(folder))
            return {f"mlflow ui --backend-store-uri {store}": "its curves beside the others'"}
    return {}
