"""Find the MLflow store of a run without importing MLflow."""

from __future__ import annotations

import os
from pathlib import Path

from rlhf_cli.runs.run_folder import RunFolder, read_json

URI_VARIABLE = "MLFLOW_TRACKING_URI"


def begun_in(folder: RunFolder) -> Path:
    """Return the folder in which the run was started, or the current one if that is gone."""
    cwd = read_json(folder.provenance).get("cwd")
    begun = Path(cwd) if isinstance(cwd, str) else Path.cwd()
    return begun if begun.is_dir() else Path.cwd()


def store_uri(folder: RunFolder) -> str:
    """Return MLFLOW_TRACKING_URI, else `mlflow.db` in the folder in which the run was started."""
    return os.environ.get(URI_VARIABLE) or f"sqlite:///{begun_in(folder) / 'mlflow.db'}"
