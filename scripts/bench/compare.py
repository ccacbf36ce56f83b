"""What `rlhf compare` costs: CPU seconds and memory of the whole command on run folders written for it.

    python -m scripts.bench.compare --runs 100
    python -m scripts.bench.compare --runs 1000

Each run has 1,000 log events of 65 metrics, 3 MB; the runs are links to ten files, for reading is measured and not a
disk. CPU seconds are those of the process and its children, start included; memory is its largest resident size.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

_EVENTS, _METRICS, _FILES, _SEEDS = 1000, 65, 10, 10
_NAMED = ("reward", "rewards/correct/mean", "rewards/format/mean", "rewards/brevity/mean")
_NAMED += ("completions/mean_length", "rewards/truncation/fraction", "kl/k1_policy_ref", "loss")


def write_runs(root: Path, count: int) -> None:
    """Write `count` runs: settings of ten seeds each, the configuration as long as a real one."""
    names = [*_NAMED, *(f"ppo/another_measure_{number}" for number in range(_METRICS - len(_NAMED)))]
    files = []
    for number in range(_FILES):
        random.seed(number)
        file = root / f"metrics-{number}.jsonl"
        with file.open("w") as stream:
            for step in range(1, _EVENTS + 1):
                event = {"step": step, "time_s": step * 0.5, **{name: random.random() for name in names}}
                stream.write(json.dumps(event) + "\n")
        files.append(file)
    for number in range(count):
        folder = root / "runs" / f"{number:04d}"
        folder.mkdir(parents=True)
        rewards = {name: {"fn": "a:b", "weight": 1.0} for name in ("correct", "format")}
        config = {
            "seed": number % _SEEDS,
            "trainer": {"name": "ppo", "args": {f"argument_{one}": one for one in range(100)}},
            "rewards": {**rewards, "brevity": {"fn": "a:c", "weight": number // _SEEDS / 10}},
        }
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
        (folder / "status.json").write_text(json.dumps({"state": "finished", "step": _EVENTS, "max_steps": _EVENTS}))
        (folder / "provenance.json").write_text("{}")
        os.link(files[number % _FILES], folder / "metrics.jsonl")


def main() -> None:
    """Write the runs, compare them, print what it took."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--words", nargs="*", default=["--json"])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        write_runs(Path(root), options.runs)
        command = [sys.executable, "-m", "rlhf_cli", "compare", f"{root}/runs", *options.words]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = used.ru_utime + used.ru_stime
    print(f"{options.runs} runs: {seconds:.1f} CPU seconds, {used.ru_maxrss / 1024:.0f} MB")


if __name__ == "__main__":
    main()
