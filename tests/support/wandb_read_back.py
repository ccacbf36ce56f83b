"""Reads wandb's own records back, as its server would: configuration, rows, summary, tables."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class ReadBack:
    """What one record says. `steps` maps wandb's step -> the row's values, `axes` a metric -> its x-axis."""

    run: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    steps: dict[int, dict[str, Any]] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    axes: dict[str, str] = field(default_factory=dict)
    exit_code: int | None = None
    text: str = ""

    @property
    def metrics(self) -> set[str]:
        """Return the names in all rows that are no table's and not wandb's own."""
        names = {name for row in self.steps.values() for name in row if not name.startswith("_")}
        return {name for name in names if "/" in name}

    def series(self, name: str) -> dict[int, Any]:
        """Return step -> value of one metric."""
        return {step: row[name] for step, row in self.steps.items() if name in row}


def read_back(file: Path) -> ReadBack:
    """Read a `.wandb` file by wandb's own reader."""
    wandb = Path(sys.executable).with_name("wandb")
    done = subprocess.run([wandb, "leet", "inspect", "--json", file], capture_output=True, text=True, check=True)
    read = ReadBack(text=done.stdout)
    for line in done.stdout.splitlines():
        record = json.loads(line)
        content = record.get(record["type"], {})
        match record["type"]:
            case "run":
                read.run = content
                read.config |= content.get("config", {}).get("update", {})
            case "config":
                read.config |= content.get("update", {})
            case "history":
                read.steps.setdefault(content["item"]["_step"], {}).update(content["item"])
            case "summary":
                read.summary |= content.get("update", {})
            case "metric" if "step_metric" in content:
                read.axes[content.get("glob_name") or content["name"]] = content["step_metric"]
            case "exit":
                read.exit_code = content.get("exit_code", 0)
    return read


def records(folder: Path) -> list[ReadBack]:
    """Return the offline records of a run folder, the earliest attempt first."""
    return [read_back(file) for file in sorted(folder.glob("wandb/offline-run-*/run-*.wandb"))]


def tables(folder: Path, name: str) -> list[dict[str, Any]]:
    """Return the tables of that name in the newest offline record, by the step in their file's name."""
    newest = max(folder.glob("wandb/offline-run-*"))
    files = newest.glob(f"files/media/table/{name}_[0-9]*.table.json")
    return [json.loads(file.read_text()) for file in sorted(files, key=lambda file: int(file.name.split("_")[-2]))]


def leaves(tree: object) -> int:
    """Return the number of values in a nested configuration."""
    return sum(map(leaves, tree.values())) if isinstance(tree, dict) and tree else 1
