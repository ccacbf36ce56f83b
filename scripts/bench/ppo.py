"""Our PPO beside that of TRL 1.12, the last TRL that had one: CPU per update, peak memory, what the critic costs.

usage: ppo.py --trl-1-12 DIR [--pairs 2] [--updates 1] [--epochs 4] [--only full ragged memory critic]

    pip install --no-deps --target DIR trl==1.12.0

Both sides train the same folders (ppo_models.py): 32 episodes an update, minibatches of 8, up to 128 tokens, one
thread. Seconds are those between the beginning of training and its end; peak memory is the whole process's. In the full
world every answer runs to 128 tokens, in the ragged one a token in fifty is the last. How fast both learn: ppo_toy.py.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pairs import Cost, cost_of, print_ratios
from ppo_models import make

from rlhf_cli.runs.metrics_file import read_metrics, series
from rlhf_cli.runs.run_folder import RunFolder

HERE = Path(__file__).parent
PARTS = ("full", "ragged", "memory", "critic")
END_PROBABILITY = 0.02
LIMIT, LEARNING_RATE = 128, 1e-5
WHOLE = ["trainer.args.per_device_train_batch_size=8", "trainer.args.steps_per_generation=4"]
SPLIT = [
    "trainer.args.per_device_train_batch_size=2",
    "trainer.args.gradient_accumulation_steps=4",
    "trainer.args.steps_per_generation=16",
]
"""The same minibatches of 8 rows in parts of 2, for less memory."""


@dataclass
class Bench:
    """Commands of either side in `workplace`, and what their updates cost. `trl` is the folder with TRL 1.12."""

    workplace: Path
    trl: Path
    updates: int
    epochs: int
    number: int = 0

    def ours(self, models: Path, *words: str, seed: int = 0, start: str = "ppo") -> tuple[Cost, dict[str, float]]:
        """Cost per update, and `reward` and `length` of the last update."""
        self.number += 1
        name, out = f"run{self.number}", self.workplace / f"{self.number}.json"
        given = [f"model.path={models}/policy", f"data.path={models}/prompts.jsonl", *words]
        command = [sys.executable, str(HERE / "ppo_clock.py"), str(out), "train", *STARTS[start], "model=local"]
        command += ["data=file", *given, f"+rewards.rm.model={models}/reward", f"run.name={name}"]
        command += [f"trainer.args.max_steps={4 * self.epochs * self.updates}"]
        command += [f"trainer.args.num_iterations={self.epochs}", f"trainer.args.max_completion_length={LIMIT}"]
        command += [f"trainer.args.learning_rate={LEARNING_RATE}", "trainer.args.log_completions=false"]
        command += ["track=none", "launch=cpu", "trainer.args.save_strategy=no", f"seed={seed}"]
        if start == "ppo":
            command += [f"critic.learning_rate={LEARNING_RATE}"]
        cost = self._cost(command, out, {})
        (folder,) = self.workplace.glob(f"runs/*/{name}")
        events = read_metrics(RunFolder(folder).metrics)
        found = {"reward": "reward", "length": "completions/mean_length"}
        return cost, {key: series(events, metric)[1][-1] for key, metric in found.items()}

    def theirs(self, models: Path, *, seed: int) -> tuple[Cost, dict[str, float]]:
        self.number += 1
        out = self.workplace / f"{self.number}.json"
        command = [sys.executable, "-W", "ignore", str(HERE / "trl_1_12_ppo.py"), "--out", str(out)]
        command += ["--model", f"{models}/policy", "--reward-model", f"{models}/reward"]
        command += ["--value-model", f"{models}/value", "--prompts", f"{models}/prompts.jsonl"]
        command += ["--updates", str(self.updates), "--epochs", str(self.epochs), "--mini-batches", "4"]
        command += ["--learning-rate", str(LEARNING_RATE), "--max-new-tokens", str(LIMIT), "--seed", str(seed)]
        cost = self._cost(command, out, {"PYTHONPATH": str(self.trl)})
        found = json.loads(out.read_text())
        return cost, {"reward": found["reward"][-1], "length": found["tokens"][-1] / 32}

    def _cost(self, command: list[str], out: Path, more: dict[str, str]) -> Cost:
        """Seconds of training alone, an update; peak memory of the whole command."""
        quiet = {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **quiet, **more}
        whole = cost_of(command, cwd=str(self.workplace), environment=environment)
        took = json.loads(out.read_text())
        return Cost(took["wall_s"] / self.updates, took["cpu_s"] / self.updates, whole.peak_mb)


STARTS = {
    "ppo": ["+exp=toy_ppo", "~rewards.correct", "~rewards.brevity"],
    "grpo": ["trainer=grpo", "trainer.args.num_generations=4", "trainer.args.gradient_checkpointing=false"],
}


def world(bench: Bench, models: Path, pairs: int, more: dict[str, list[str]]) -> None:
    """Our PPO with a critic as large as the policy, TRL's, and `more` of ours, by the words of their command lines."""
    critic = f"critic.init={models}/value"
    words = {"ours": [critic, *WHOLE]} | {name: [critic, *others] for name, others in more.items()}
    runs: dict[str, Callable[[int], tuple[Cost, dict[str, float]]]] = {
        name: functools.partial(lambda said, seed: bench.ours(models, *said, seed=seed), said)
        for name, said in words.items()
    }
    runs["TRL 1.12"] = lambda seed: bench.theirs(models, seed=seed)
    found: dict[str, list[tuple[Cost, dict[str, float]]]] = {name: [] for name in runs}
    for seed in range(pairs):  # which answers end early is chance, and not the same on both sides
        for name, run in runs.items():
            found[name].append(run(seed))
    costs = {name: [cost for cost, _ in of_name] for name, of_name in found.items()}
    for name in runs:
        if name != "TRL 1.12":
            print_ratios(name, "TRL 1.12", list(zip(costs[name], costs["TRL 1.12"], strict=True)))
    for name, of_name in found.items():
        reward, length = (statistics.mean(said[key] for _, said in of_name) for key in ("reward", "length"))
        print(f"  {name:<15} reward of the last update {reward:>8.4f}   tokens of an answer {length:>6.1f}")
    sys.stdout.flush()


def critic_cost(bench: Bench, models: Path) -> None:
    """Every answer has 128 tokens here: nothing is trimmed, and GRPO's steps are as long as ours."""
    lora, critic = "+model.lora.r=16", f"critic.init={models}/value"
    grpo = "trainer.args.beta=0.05"
    runs = {
        "GRPO": ("grpo", [grpo]),
        "PPO, separate critic": ("ppo", [critic]),
        "GRPO, LoRA": ("grpo", [grpo, lora]),
        "PPO, LoRA, separate critic": ("ppo", [critic, lora]),
        "PPO, LoRA, share=lora": ("ppo", ["critic.share=lora", lora]),
    }
    print(f"{'':<30}{'CPU s an update':>16}{'peak MB':>10}{'critic share':>14}")
    base = 0.0
    for name, (start, words) in runs.items():
        cost, _ = bench.ours(models, *words, *WHOLE, start=start)
        base = cost.cpu_s if start == "grpo" else base
        share = "" if start == "grpo" else f"{1 - base / cost.cpu_s:.2f}"
        print(f"{name:<30}{cost.cpu_s:>16.1f}{cost.peak_mb:>10.0f}{share:>14}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trl-1-12", required=True, type=Path, metavar="DIR", help="folder that TRL 1.12 is in")
    parser.add_argument("--pairs", type=int, default=2)
    parser.add_argument("--updates", type=int, default=1, help="of every run")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        workplace = Path(temporary)
        bench = Bench(workplace, options.trl_1_12.resolve(), options.updates, options.epochs)
        full, ragged, large = (workplace / name for name in ("full", "ragged", "large"))
        make(full, vocab=8192, end_probability=0.0)
        make(ragged, vocab=8192, end_probability=END_PROBABILITY)
        if "full" in options.only:
            print(f"\nfull, {options.epochs} epochs", flush=True)
            world(bench, full, options.pairs, {})
        if "ragged" in options.only:
            print(f"\nragged, {options.epochs} epochs", flush=True)
            smaller = [f"critic.init={ragged}/small", *WHOLE]
            lora = ["critic.init=policy", "critic.share=lora", "+model.lora.r=16", *WHOLE]
            world(bench, ragged, options.pairs, {"smaller critic": smaller, "LoRA critic": lora})
        if "critic" in options.only:
            print(f"\nwhat the critic costs: full, {options.epochs} epochs", flush=True)
            critic_cost(bench, full)
        if "memory" in options.only:
            make(large, vocab=32768, end_probability=END_PROBABILITY)
            print("\nmemory: ragged, 32768 tokens, 1 epoch", flush=True)
            world(Bench(workplace, bench.trl, 1, 1, bench.number), large, 1, {"ours by 2": SPLIT})


if __name__ == "__main__":
    main()
