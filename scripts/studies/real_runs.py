"""Runs of the real model: each a process of its own, resumed where it was stopped, with what it cost."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from seeds import SEEDS, study_arguments

from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_status import FINISHED, read_status

ON = {"cpu": ("launch=cpu",), "cuda": ("launch.device=cuda", "launch.processes=1", "launch.precision=float32")}
"""Words for a device. Both compute in float32, so that a seed's run on one can be compared with the other's."""


def trained(experiment: str, name: str, words: Sequence[str], root: Path) -> tuple[RunFolder, dict[str, float]]:
    """Return a run and its cost: CPU and wall seconds of its commands, peak memory in GB.

    A run that was stopped is resumed. Raises SystemExit if it failed.
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


def study_of_conditions(
    doc: str | None, experiment: str, conditions: Mapping[str, tuple[str, Sequence[str]]]
) -> tuple[argparse.Namespace, dict[str, list[RunFolder]]]:
    """Return what was typed and the runs of each label's condition in the order of SEEDS, trained where not there yet.

    conditions: label -> the name that its runs' names begin with, what is typed beside the experiment's name.
    """
    typed = study_arguments(doc or "", jobs=True, devices=list(ON))
    root = typed.root.resolve()
    root.mkdir(parents=True, exist_ok=True)
    # Several runs share a GPU on purpose here; on a CPU a second thread costs more than it gains.
    os.environ |= {"OMP_NUM_THREADS": "1", "RLHF_SHARE_GPUS": "1"}

    def run_of(label: str, seed: int) -> RunFolder:
        name, words = conditions[label]
        words = (f"seed={seed}", *ON[typed.device], *words)
        return trained(experiment, f"{name}-seed{seed}", words, root)[0]

    with ThreadPoolExecutor(typed.jobs) as pool:
        waiting = {(label, seed): pool.submit(run_of, label, seed) for seed in SEEDS for label in conditions}
    return typed, {label: [waiting[label, seed].result() for seed in SEEDS] for label in conditions}
