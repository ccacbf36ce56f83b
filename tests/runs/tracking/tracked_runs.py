"""Run folders as a finished run leaves them, made without training, and what tells a tracker of them."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow
import pyarrow.parquet
import yaml

from rlhf_cli.runs.metrics_file import read_metrics
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.tracking.mirror import Mirror
from rlhf_cli.runs.tracking.tracked_run import TrackerName, TrackingPlan

REWARDS = (0.1, 0.9, 0.4, 0.5)
"""The totals of steps 1 to 4; the component `correct` has half of them."""

CONFIG = {
    "seed": 3,
    "rewards": {"correct": {"weight": 2.0, "fn": "rlhf_cli.rewards.toy:sums_correct"}},
    "trainer": {"name": "grpo", "args": {"learning_rate": 0.001}},
    "track": {"mode": "offline", "tracker": "wandb", "project": "sums", "entity": None, "tags": ["mine"], "notes": "n"},
}


def event(step: int, total: float) -> dict[str, object]:
    """Return a log event of a step."""
    of_reward = {"reward": total, "rewards/correct/mean": total / 2, "kl": None, "epoch": step / 10}
    return {"step": step, "time_s": 1.5 * step, **of_reward}


EVALUATION = {
    **{"step": 4, "time_s": 6.1, "eval_greedy/rewards/correct": 0.3, "eval_pass@4/correct": 0.7},
    **{"eval_greedy/total": 0.6, "eval_greedy/total/low": 0.4, "eval_greedy/total/high": 0.8},
}
LAST = {"step": 4, "time_s": 6.2, "train_runtime": 6.5, "train_loss": 0.01, "epoch": 0.4}
EVENTS: list[Mapping[str, object]] = [*(event(step, total) for step, total in enumerate(REWARDS, 1)), EVALUATION, LAST]


def logged_run(
    path: Path,
    *,
    events: Sequence[Mapping[str, object]] = EVENTS,
    config: Mapping[str, object] = CONFIG,
    provenance: Mapping[str, object] | None = None,
) -> RunFolder:
    """Write a run folder with these events, and a table of two completions a step."""
    folder = RunFolder(path)
    (path / "completions").mkdir(parents=True)
    folder.config.write_text(yaml.safe_dump(dict(config), sort_keys=False))
    known = {
        "command": "rlhf train +exp=quickstart",
        "choices": {"exp": "quickstart", "model": "tiny", "data": "toy_sums", "launch": "cpu"},
        "cwd": str(path.parent),
        "wandb_id": "0123abcd",
        "versions": {"rlhf": "0.1.0", "torch": "2.13.0", "trl": "1.16.0", "peft": "0.21"},
    }
    folder.provenance.write_text(json.dumps({**known, **(provenance or {})}))
    folder.status.write_text(json.dumps({"state": "finished", "step": 4}))
    folder.metrics.write_text("".join(json.dumps(one) + "\n" for one in events))
    for step in range(1, 5):
        write_completions(folder, step)
    return folder


def write_completions(folder: RunFolder, step: int, *, prompt: str = "1+1=", completion: str | None = None) -> None:
    """Write the table of a step."""
    completions = [completion or f"two at {step}", "3"]
    rows = {"step": [step] * 2, "prompt": [prompt] * 2, "completion": completions, "correct": [1.0, None]}
    file = folder.path / "completions" / f"completions_{step:05d}.parquet"
    pyarrow.parquet.write_table(pyarrow.table({**rows, "advantage": [0.5, -0.5]}), file)


def write_evaluation(folder: RunFolder, step: int) -> None:
    """Write what an evaluation at a step leaves."""
    place = folder.path / "eval" / "training"
    place.mkdir(parents=True, exist_ok=True)
    figures = {"mean": 0.6, "low": 0.4, "high": 0.8, "n": 2}
    rewards = {"correct": {"raw": {**figures, "mean": 0.3}, "effective": figures, "weighted": figures}}
    part = {"total": figures, "truncated": figures, "tokens": figures, "rewards": rewards}
    (place / f"step-{step}.json").write_text(json.dumps({"step": step, "parts": {"greedy": part}}))
    answer = {"prompt": [{"role": "user", "content": "1+1="}], "completion": "2\u2028", "completion_ids": [50]}
    rest = {"part": "greedy", "sample": 0, "total": 0.6, "rewards": {"correct": 0.3}}
    (place / f"step-{step}.completions.jsonl").write_text(json.dumps({**answer, **rest}, ensure_ascii=False) + "\n")


def report(
    folder: RunFolder,
    tracker: TrackerName = "wandb",
    *,
    goes_on_from: int = 0,
    recorded_to: int = 0,
    error: BaseException | None = None,
) -> list[str]:
    """Mirror what a run folder has logged after a step, as the worker does; return what was printed."""
    args, printed = None, list[str]()
    if tracker != "wandb":
        from transformers import TrainingArguments  # torch comes with it

        args = TrainingArguments(str(folder.path), use_cpu=True, report_to=[])
    mirror = Mirror(folder, TrackingPlan("offline", tracker=tracker), say=printed.append)
    try:
        with mirror.attempt(args, goes_on_from=goes_on_from, recorded_to=recorded_to):
            for event in read_metrics(folder.metrics):
                if (step := int(str(event["step"]))) > goes_on_from:
                    mirror.event(event)
                    mirror.completions(step)
            if error is not None:
                raise error
    finally:
        if tracker == "wandb":
            importlib.import_module("wandb").teardown()  # its file is whole when its service has ended
    return printed
