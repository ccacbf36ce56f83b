"""Small runs of RewardTrainer: what to type, rows to train on, and what a run left behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rlhf_cli.runs.run_folder import RunFolder

SMALL = [
    "trainer=reward",
    *("model.build.hidden_size=16", "model.build.num_layers=1", "model.build.warm_start=null"),
    *("trainer.args.max_steps=3", "trainer.args.learning_rate=0.01", "launch=cpu", "track=none"),
]
WORLD = ["data=toy_preferences", "data.args.num_rows=40"]


def from_file(rows: list[dict[str, Any]], name: str = "pairs.jsonl") -> list[str]:
    """Overrides that take the data from a file with these rows, in the current folder."""
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return ["data=file", f"data.path={name}"]


def sums(count: int = 12, **more: Any) -> list[dict[str, Any]]:
    return [{"prompt": f"{n}+1=", "chosen": str(n + 1), "rejected": f"well {n}", **more} for n in range(count)]


def samples(folder: RunFolder) -> list[dict[str, Any]]:
    return [json.loads(line) for line in folder.samples.read_text().splitlines()]
