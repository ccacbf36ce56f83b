"""Says which store of MLflow's a run is recorded in; without importing it."""

from __future__ import annotations

import os
from pathlib import Path

from rlhf_cli.runs.run_folder import RunFolder, read_json

URI_VARIABLE = "MLFLOW_TRACKING_URI"


def begun_in(folder: RunFolder) -> Path:
    """Return the folder that the run was begun in, where MLflow's users look; the present one where it is gone."""
    cwd = read_json(folder.provenance).get("cwd")
    begun = Path(cwd) if isinstance(cwd, str) else Path.cwd()
    return begun if begun.is_dir() else Path.cwd()


def store_uri(folder: RunFolder) -> str:
    """Return what MLFLOW_TRACKING_URI says, else `mlflow.db` in the folder that the run was begun in."""
    return os.environ.get(URI_VARIABLE) or f"sqlite:///{begun_in(folder) / 'mlflow.db'}"
