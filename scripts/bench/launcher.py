"""What our layer costs: `rlhf train` against the same trainer of TRL called from a plain script.

Both are whole processes, from nothing to a saved model. Their losses and weights must be equal to the last digit.

usage: launcher.py [--exp quickstart | toy_reward] [--steps 20] [--pairs 5]
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from pairs import cost_of, print_ratios

from rlhf_cli.models.tiny import EMBEDDED
from rlhf_cli.runs.metrics_file import read_metrics, series
from rlhf_cli.runs.run_folder import RunFolder

PLAIN = {"quickstart": ["plain_grpo.py", "quickstart"], "toy_reward": ["plain_reward.py"]}
"""Experiment -> the script that does it without us, and the task that it is told to do."""

ALIKE = {
    "quickstart": ["trainer.passes=plain"],
    "toy_reward": ["~data.eval", "trainer.args.eval_strategy=no", "reward_model.show_samples=0"],
}
"""Experiment -> what of it the plain script leaves out, and TRL's own passes, for equality to the last digit."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--exp", choices=PLAIN, default="quickstart")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--pairs", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as workplace:
        environment = {**os.environ, "RLHF_CACHE": f"{workplace}/cache", "TOKENIZERS_PARALLELISM": "false"}
        environment["HF_HUB_DISABLE_TELEMETRY"] = "1"
        ours = [sys.executable, "-m", "rlhf_cli", "train", f"+exp={options.exp}", "launch=cpu", "track=none"]
        ours += [f"trainer.args.max_steps={options.steps}", *ALIKE[options.exp]]
        subprocess.run([*ours, "run.name=warm"], cwd=workplace, env=environment, check=True, capture_output=True)
        script, *task = PLAIN[options.exp]
        plain = [sys.executable, str(Path(__file__).with_name(script)), *task]
        plain += [str(EMBEDDED / "tiny"), str(options.steps)]
        pairs = []
        for number in range(options.pairs):
            a = cost_of([*ours, f"run.name=run{number}"], cwd=workplace, environment=environment)
            b = cost_of([*plain, f"plain{number}"], cwd=workplace, environment=environment)
            pairs.append((a, b))
        print_ratios("rlhf train", "plain TRL", pairs)
        run = RunFolder(Path(workplace, "runs", options.exp, "run0"))
        done = subprocess.run(
            [*plain, "check"],
            cwd=workplace,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        losses = ast.literal_eval(done.stdout.rpartition("losses ")[2].strip())
        print("losses equal: ", series(read_metrics(run.metrics), "loss")[1] == losses)
        print("weights equal:", digest(run.model) == digest(Path(workplace, "check/model")))


def digest(model: Path) -> str:
    return hashlib.sha256((model / "model.safetensors").read_bytes()).hexdigest()


if __name__ == "__main__":
    main()
