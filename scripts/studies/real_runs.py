"""Run the real model in its own process, resume it if it was stopped, and record its cost."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_status import FINISHED, read_status


def trained(experiment: str, name: str, words: Sequence[str], root: Path) -> tuple[RunFolder, dict[str, float]]:
    """Return a run and its cost: CPU and wall seconds of its commands, peak memory in GB.

    A stopped run is resumed. Raise SystemExit if it fails.
    """
    run, costs = RunFolder(root / experiment / name), root / f"{experiment}-{name}.json"
    cost = {"cpu_s": 0.0, "wall_s": 0.0, "peak_gb": 0.0}
    if costs.exists():
        cost = json.loads(costs.read_text(encoding="utf-8"))
    if not run.path.exists() or read_status(run).state != FINISHED:
        typed = ["train", f"+exp={experiment}", *words, "track=none", f"run.root={root}", f"run.name={name}"]
        if run.path.exists():
            typed = ["resume", str(run.path)]
        start = time.monotonic()
        process = os.spawnv(os.P_NOWAIT, sys.executable, [sys.executable, "-m", "rlhf_cli", *typed])
        _, ended, used = os.wait4(process, 0)
        cost["cpu_s"] += used.ru_utime + used.ru_stime
        cost["wall_s"] += time.monotonic() - start
        cost["peak_gb"] = max(cost["peak_gb"], used.ru_maxrss * 1024 / 1e9)
        costs.write_text(json.dumps(cost), encoding="utf-8")
        if ended:
            raise SystemExit(f"{run.path}: ended with {os.waitstatus_to_exitcode(ended)}")
    return run, cost
