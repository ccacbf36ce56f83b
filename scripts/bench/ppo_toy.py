"""How fast our PPO and that of TRL 1.12 learn the toy task: sums, with the rewards of `exp=toy_ppo`.

usage: ppo_toy.py --trl-1-12 DIR [--seeds 5] [--rounds 20]

The same model, prompts, rewards and settings on both sides: 256 episodes a round, 4 minibatches, 4 epochs, 8 bytes,
learning rates of 3e-4 (TRL has one for policy and critic), a KL penalty of 0.05, a critic that begins as the policy
under a head of zeros. Printed is the score, without the penalty, over the last two rounds.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rlhf_cli.data.worlds.toy_sums import generate
from rlhf_cli.models.tiny import EMBEDDED
from rlhf_cli.numerics.intervals import student
from rlhf_cli.runs.metrics_file import read_metrics, series
from rlhf_cli.runs.run_folder import RunFolder

HERE = Path(__file__).parent
RATE = "3e-4"


def ours(workplace: Path, environment: dict[str, str], seed: int, rounds: int) -> list[float]:
    """The score of every round."""
    command = [sys.executable, "-m", "rlhf_cli", "train", "+exp=toy_ppo", f"seed={seed}", f"run.name=seed{seed}"]
    command += [f"trainer.args.max_steps={16 * rounds}", f"trainer.args.learning_rate={RATE}"]
    command += [f"critic.learning_rate={RATE}", "track=none", "launch=cpu", "trainer.args.save_strategy=no"]
    subprocess.run(command, cwd=workplace, env=environment, check=True, capture_output=True)
    return series(read_metrics(RunFolder(workplace / f"runs/toy_ppo/seed{seed}").metrics), "reward")[1]


def theirs(workplace: Path, environment: dict[str, str], seed: int, rounds: int, trl: Path) -> list[float]:
    model = EMBEDDED / "tiny"
    prompts, out = workplace / f"prompts{seed}.jsonl", workplace / f"trl{seed}.json"
    prompts.write_text("".join(json.dumps({"prompt": row["prompt"]}) + "\n" for row in generate(2000, seed)))
    command = [sys.executable, "-W", "ignore", str(HERE / "trl_1_12_ppo.py"), "--reward", "toy_sums"]
    command += ["--model", str(model), "--value-model", str(model), "--prompts", str(prompts), "--out", str(out)]
    command += ["--updates", str(rounds), "--epochs", "4", "--batch", "256", "--mini-batches", "4"]
    command += ["--max-new-tokens", "8", "--learning-rate", RATE, "--seed", str(seed)]
    old = {**environment, "PYTHONPATH": str(trl), "TRL_EXPERIMENTAL_SILENCE": "1"}
    subprocess.run(command, cwd=workplace, env=old, check=True, capture_output=True)
    found: list[float] = json.loads(out.read_text())["reward"]
    return found


def line(name: str, rows: list[list[float]]) -> str:
    """The last two rounds of every seed, their mean and its Student interval."""
    ends = [statistics.mean(row[-2:]) for row in rows]
    end = student(ends)
    half = math.inf if end.high is None else end.high - end.mean
    start = statistics.mean(row[0] for row in rows)
    seeds = "  ".join(f"{one:.3f}" for one in ends)
    return f"{name:<10} start {start:.3f}   end {end.mean:.3f} +- {half:.3f}   by seed {seeds}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trl-1-12", required=True, type=Path, metavar="DIR", help="folder that TRL 1.12 is in")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    trl, seeds = options.trl_1_12.resolve(), range(options.seeds)
    with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor(2) as pool:
        workplace = Path(temporary)
        environment = {**os.environ, "RLHF_CACHE": f"{workplace}/cache", "OMP_NUM_THREADS": "1"}
        environment |= {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
        new = [pool.submit(ours, workplace, environment, seed, options.rounds) for seed in seeds]
        old = [pool.submit(theirs, workplace, environment, seed, options.rounds, trl) for seed in seeds]
        print(line("ours", [run.result() for run in new]))
        print(line("TRL 1.12", [run.result() for run in old]))


if __name__ == "__main__":
    main()
