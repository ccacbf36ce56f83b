"""One group of four completions that are given, two of them cut off, and advantages by hand."""

from __future__ import annotations

from typing import Any

import pyarrow.parquet

from rlhf_cli.runs.metrics_file import read_metrics
from rlhf_cli.runs.run_folder import RunFolder

PAD, EOS, OTHER_EOS = 0, 1, 99
LIMIT = 4
ROWS = ([50, 51, EOS], [60, 61, 62, 63], [70, 71, 72, EOS], [80, 81, 82, 83])
"""Short and ended; cut; exactly at the limit and ended; cut."""

SCORES = {50: 1.0, 60: 2.0, 70: 3.0, 80: 6.0}

REWARDS = f"""
SCORES = {SCORES}

def score(completion_ids, **kwargs):
    return [SCORES.get(ids[0], 40.0) for ids in completion_ids]
"""

PENALTY = ("truncation=eos_penalty", "truncation.penalty=1.0")
REPLACE = (*PENALTY, "truncation.mode=replace")
RAMP = ("truncation=soft_overlong", "truncation.cache=2")


class Seen:
    """What the last run ended with."""

    folder: RunFolder
    outputs: list[dict[str, Any]]

    @property
    def event(self) -> dict[str, Any]:
        return read_metrics(self.folder.metrics)[0]

    @property
    def advantages(self) -> list[float]:
        table = pyarrow.parquet.read_table(self.folder.path / "completions" / "completions_00001.parquet")
        return table.to_pydict()["advantage"]


def grpo(totals: list[float | None]) -> list[float]:
    """Return GRPO's advantages without scaling; a row whose reward is None is excluded."""
    present = [total for total in totals if total is not None]
    return [0.0 if total is None else total - sum(present) / len(present) for total in totals]
