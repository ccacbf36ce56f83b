"""Shared by the tests of run folders: runs written by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlhf_cli.runs.run_folder import RunFolder


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., RunFolder]:
    """`make_run("runs/exp/one", config={...}, status={...}, events=[...])`"""

    def call(
        name: str = "runs/exp/one",
        config: dict[str, Any] | None = None,
        status: dict[str, Any] | None = None,
        events: list[dict[str, Any]] | None = None,
    ) -> RunFolder:
        folder = RunFolder(tmp_path / name)
        folder.path.mkdir(parents=True)
        folder.config.write_text(yaml.safe_dump(config or {"seed": 0}, sort_keys=False))
        if status is not None:
            folder.status.write_text(json.dumps(status))
        if events is not None:
            folder.metrics.write_text("".join(json.dumps(event) + "\n" for event in events))
        return folder

    return call
