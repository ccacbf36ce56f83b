"""Our PPO beside that of TRL 1.12, the last TRL that had one: CPU per update, peak memory, smaller and LoRA critics.

usage: ppo.py --trl-1-12 DIR [--smollm2] [--pairs 2] [--updates 1] [--epochs 4]
       ppo.py --shuffles [--pairs 2] [--updates 1] [--epochs 4]

    pip install --no-deps --target DIR trl==1.12.0

Both sides train the same folders (ppo_models.py): 32 episodes an update, minibatches of 8, answers of up to 128 tokens
with one chance in fifty to end at each, one thread. Seconds are those between the beginning of training and its end;
peak memory is the whole process's.

`--smollm2` trains SmolLM2 (135M, after `make real`) on sums instead, with rewards and values from heads of random
weights, and answers as long as it makes them; of our critics only the adapter takes part.

`--shuffles` compares ours with itself, shuffled by prompt and by row: prompts of 64 words, eight answers each, of up to
32 tokens.
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
from transformers import AutoModelForSequenceClassification, AutoTokenizer, set_seed

from rlhf_cli.runs.metrics_file import read_metrics, series
from rlhf_cli.runs.run_folder import RunFolder
from scripts.bench.whole_step import make_real

HERE = Path(__file__).parent
END_PROBABILITY = 0.02
LIMIT, LEARNING_RATE = 128, 1e-5
WHOLE = ["trainer.args.per_device_train_batch_size=8", "trainer.args.steps_per_generation=4"]


@dataclass
class Bench:
    """Commands of either side in `workplace`, and what their updates cost. `trl` is the folder with TRL 1.12."""

    workplace: Path
    trl: Path
    updates: int
    epochs: int
    number: int = 0

    def ours(self, models: Path, *words: str, seed: int = 0, limit: int = LIMIT) -> tuple[Cost, dict[str, float]]:
        """Cost per update, and `reward` and `length` of the last update."""
        self.number += 1
        name, out = f"run{self.number}", self.workplace / f"{self.number}.json"
        given = [f"model.path={models}/policy", f"data.path={models}/prompts.jsonl", *words]
        command = [sys.executable, str(HERE / "ppo_clock.py"), str(out), "train", *START, "model=local"]
        command += ["data=file", *given, f"+rewards.rm.model={models}/reward", f"run.name={name}"]
        command += [f"trainer.args.max_steps={4 * self.epochs * self.updates}"]
        command += [f"trainer.args.num_iterations={self.epochs}", f"trainer.args.max_completion_length={limit}"]
        command += [f"trainer.args.learning_rate={LEARNING_RATE}", "trainer.args.log_completions=false"]
        command += ["track=none", "launch=cpu", "trainer.args.save_strategy=no", f"seed={seed}"]
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


START = ["+exp=toy_ppo", "~rewards.correct", "~rewards.brevity"]


LORA = ["critic.init=policy", "critic.share=lora", "+model.lora.r=16", *WHOLE]


def make_smollm2(models: Path) -> None:
    """Write policy, reward, value and prompts.jsonl as `make` does: SmolLM2, two with a head of random weights."""
    make_real(models)
    tokenizer = AutoTokenizer.from_pretrained(models / "policy")
    set_seed(0)
    classifier = AutoModelForSequenceClassification.from_pretrained(models / "policy", dtype="float32", num_labels=1)
    for name in ("reward", "value"):
        classifier.save_pretrained(models / name)
        tokenizer.save_pretrained(models / name)
    rows = [json.loads(line)["prompt"] for line in (models / "prompts.jsonl").read_text().splitlines()]
    texts = [tokenizer.apply_chat_template(row, tokenize=False, add_generation_prompt=True) for row in rows]
    (models / "prompts.jsonl").write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))


def world(bench: Bench, models: Path, pairs: int, words: dict[str, list[str]]) -> None:
    """Compare TRL's PPO with ours, in as many ways as `words` has command lines."""
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


def by_prompt_and_by_row(bench: Bench, models: Path, pairs: int) -> None:
    """What it saves to keep a prompt's answers in one minibatch of 8 rows."""
    lines = (models / "prompts.jsonl").read_text().splitlines()
    words = " ".join(json.loads(one)["prompt"] for one in lines).split()
    long = (" ".join(words[start : start + 64]) for start in range(0, 64 * 32, 64))
    (models / "prompts.jsonl").write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in long))
    given = [f"critic.init={models}/value", *WHOLE, "trainer.args.num_generations=8"]
    costs: dict[str, list[Cost]] = {"prompt": [], "row": []}
    for seed in range(pairs):
        for by, found in costs.items():
            found.append(bench.ours(models, *given, f"trainer.args.shuffle_by={by}", seed=seed, limit=32)[0])
    print_ratios("by prompt", "by row", list(zip(costs["prompt"], costs["row"], strict=True)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    compared = parser.add_mutually_exclusive_group(required=True)
    compared.add_argument("--trl-1-12", type=Path, metavar="DIR", help="folder that TRL 1.12 is in")
    compared.add_argument("--shuffles", action="store_true", help="ours shuffled by prompt and by row")
    parser.add_argument("--smollm2", action="store_true", help="train SmolLM2")
    parser.add_argument("--pairs", type=int, default=2)
    parser.add_argument("--updates", type=int, default=1, help="of every run")
    parser.add_argument("--epochs", type=int, default=4)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        workplace = Path(temporary)
        models = workplace / "models"
        trl = (options.trl_1_12 or workplace).resolve()
        bench = Bench(workplace, trl, options.updates, options.epochs)
        if options.smollm2:
            make_smollm2(models)
            return world(bench, models, options.pairs, {"LoRA critic": LORA})
        make(models, vocab=8192, end_probability=END_PROBABILITY)
        if options.shuffles:
            return by_prompt_and_by_row(bench, models, options.pairs)
        own = [f"critic.init={models}/value", *WHOLE]
        smaller = [f"critic.init={models}/small", *WHOLE]
        world(bench, models, options.pairs, {"ours": own, "smaller critic": smaller, "LoRA critic": LORA})


if __name__ == "__main__":
    main()
