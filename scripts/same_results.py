"""Run the same experiments with two checkouts and compare weights, metrics, files and exit codes.

    python -m scripts.same_results OLD NEW            # two folders with this project, for example two git worktrees

Every experiment runs twice with OLD. Metrics that differ between those two runs are timings, which are left out.
Everything else must be equal to the last digit. Exit code 1 if something differs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

_SHORT = "trainer.args.max_steps=4 expect=null track=none run.name=run"
_TWO = "launch.processes=2 trainer.args.per_device_train_batch_size=32"
TRAININGS = {
    "quickstart": f"+exp=quickstart {_SHORT}",
    "rloo, 2 processes": f"+exp=quickstart trainer=rloo {_TWO} {_SHORT}",
    "toy_ppo": f"+exp=toy_ppo {_SHORT}",
    "toy_reward": f"+exp=toy_reward {_SHORT}",
    "toy_sft": f"+exp=toy_sft {_SHORT}",
}
REFUSALS = {
    "unknown key": "+exp=quickstart rewards.correct.wieght=2",
    "wrong value": "+exp=quickstart trainer.args.learning_rate=fast",
    "no experiment": "+exp=nonesuch",
}


@dataclass
class Left:
    """The result of a command: exit code, files, keys of JSON files, metrics by log event, hashes of weights."""

    code: int
    files: set[str]
    keys: dict[str, list[str]]
    metrics: list[dict[str, object]]
    weights: dict[str, str]


def run(tree: Path, words: str, folder: Path) -> Left:
    """Run `rlhf train WORDS` with the checkout `tree` in an empty folder."""
    folder.mkdir(parents=True)
    environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "rlhf_cli", "train", *words.split()]
    code = subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=False).returncode
    files = {file.relative_to(folder).as_posix(): file for file in folder.rglob("*") if file.is_file()}
    keys = {
        name: sorted(json.loads(file.read_text(encoding="utf-8")))
        for name, file in files.items()
        if name.count("/") == 3 and file.suffix == ".json"
    }
    metrics = [
        json.loads(line)
        for name in sorted(files)
        if name.endswith("metrics.jsonl")
        for line in files[name].read_text(encoding="utf-8").splitlines()
    ]
    weights = {
        name: hashlib.sha256(file.read_bytes()).hexdigest()
        for name, file in files.items()
        if name.endswith(".safetensors")
    }
    return Left(code, set(files), keys, metrics, weights)


def timings(first: Left, again: Left) -> set[str]:
    """Return the metrics that differ between two runs of the same code."""
    return {
        key
        for a, b in zip(first.metrics, again.metrics, strict=True)
        for key in a.keys() | b.keys()
        if a.get(key) != b.get(key)
    }


def differences(old: Left, new: Left, without: set[str]) -> list[str]:
    """Return the differences, one per line."""
    found = []
    if old.code != new.code:
        found.append(f"exit code {old.code} -> {new.code}")
    found += [f"file {name} only in {'OLD' if name in old.files else 'NEW'}" for name in sorted(old.files ^ new.files)]
    for name in sorted(old.keys.keys() & new.keys.keys()):
        if old.keys[name] != new.keys[name]:
            found.append(f"keys of {name}: {sorted({*old.keys[name]} ^ {*new.keys[name]})}")
    found += [f"weights {name}" for name in sorted(old.weights) if old.weights[name] != new.weights.get(name)]
    if len(old.metrics) != len(new.metrics):
        found.append(f"lines of metrics.jsonl: {len(old.metrics)} -> {len(new.metrics)}")
    for a, b in zip(old.metrics, new.metrics, strict=False):
        for key in sorted((a.keys() | b.keys()) - without):
            if a.get(key, "missing") != b.get(key, "missing"):
                found.append(f"step {a.get('step')}: {key} {a.get(key, 'missing')} -> {b.get(key, 'missing')}")
    return found


def main() -> int:
    """Run everything, print a line per experiment and every difference; return 1 if something differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old", type=lambda text: Path(text).resolve())
    parser.add_argument("new", type=lambda text: Path(text).resolve())
    asked = parser.parse_args()
    failed = False
    with tempfile.TemporaryDirectory() as scratch:
        for name, words in {**TRAININGS, **REFUSALS}.items():
            place = Path(scratch) / name.replace(" ", "_")
            old, new = run(asked.old, words, place / "old"), run(asked.new, words, place / "new")
            without = timings(old, run(asked.old, words, place / "again")) if name in TRAININGS else set()
            found = differences(old, new, without)
            failed |= bool(found)
            compared = len({key for line in old.metrics for key in line} - without)
            print(
                f"{name}: {'DIFFERENT' if found else 'equal'}; exit {new.code}, {len(new.files)} files, "
                f"{len(new.weights)} files of weights, {len(new.metrics)} log events of {compared} metrics, "
                f"timings left out: {len(without)}",
                flush=True,
            )
            print("".join(f"  {line}\n" for line in found), end="", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
