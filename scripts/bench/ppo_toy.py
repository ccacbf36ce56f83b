"""How fast our PPO and that of TRL 1.12 learn the toy task: sums, with the rewards of `exp=toy_ppo`.

usage: ppo_toy.py [--trl-1-12 DIR] [--seeds 5] [--rounds 20]

The same model, prompts, rewards and settings on both sides: 256 episodes a round, 4 minibatches, 4 epochs, 8 bytes,
learning rates of 3e-4 (TRL has one for policy and critic), a KL penalty of 0.05, a critic that begins as the policy
under a head of zeros. Ours learns a second time with a smaller critic: half the width and one layer, from random
weights. Printed is the score, without the penalty, over the last two rounds. One process at a time.
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
from pathlib import Path

from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, set_seed

from rlhf_cli.data.worlds.toy_tasks import generate
from rlhf_cli.models.tiny import EMBEDDED
from rlhf_cli.numerics.intervals import student
from rlhf_cli.runs.metrics_file import read_metrics, series

HERE = Path(__file__).parent
RATE = "3e-4"


def ours(place: Path, environment: dict[str, str], seeds: int, rounds: int, critic: str) -> list[list[float]]:
    """The score of every round, of every seed; all in one sweep."""
    command = [sys.executable, "-m", "rlhf_cli", "train", "-m", "+exp=toy_ppo"]
    command += [f"seed={','.join(map(str, range(seeds)))}", f"critic.init={critic}"]
    command += [f"trainer.args.max_steps={16 * rounds}", f"trainer.args.learning_rate={RATE}"]
    command += [f"critic.learning_rate={RATE}", "track=none", "launch=cpu", "trainer.args.save_strategy=no"]
    place.mkdir()
    subprocess.run(command, cwd=place, env=environment, check=True, capture_output=True)
    files = sorted(place.glob("runs/toy_ppo/*/seed=*/metrics.jsonl"))
    assert len(files) == seeds, files
    return [series(read_metrics(file), "reward")[1] for file in files]


def save_small(folder: Path) -> None:
    """A language model of half the tiny model's width and one layer, with its tokens."""
    set_seed(0)
    tiny = LlamaConfig.from_pretrained(EMBEDDED / "tiny").to_dict()
    width = {"hidden_size": tiny["hidden_size"] // 2, "intermediate_size": tiny["intermediate_size"] // 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": width["hidden_size"] // 2}
    LlamaForCausalLM(LlamaConfig(**tiny | width | heads | {"num_hidden_layers": 1})).save_pretrained(folder)
    AutoTokenizer.from_pretrained(EMBEDDED / "tiny").save_pretrained(folder)


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
    return f"{name:<15} start {start:.3f}   end {end.mean:.3f} +- {half:.3f}   by seed {seeds}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trl-1-12", type=Path, metavar="DIR", help="folder with TRL 1.12; without it ours alone")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        workplace = Path(temporary)
        environment = {**os.environ, "RLHF_CACHE": f"{workplace}/cache", "OMP_NUM_THREADS": "1"}
        environment |= {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
        save_small(workplace / "small")
        for name, critic in (("ours", "policy"), ("smaller critic", f"{workplace}/small")):
            place = workplace / name.replace(" ", "-")
            print(line(name, ours(place, environment, options.seeds, options.rounds, critic)), flush=True)
        if options.trl_1_12 is not None:
            trl = options.trl_1_12.resolve()
            old = [theirs(workplace, environment, seed, options.rounds, trl) for seed in range(options.seeds)]
            print(line("TRL 1.12", old))


if __name__ == "__main__":
    main()
