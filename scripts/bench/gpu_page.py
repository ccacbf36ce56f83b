"""Print one page about this machine's GPU: what is there, what a step costs, which way generates fastest, and memory.

    python -m scripts.bench.gpu_page          # what make bench-gpu runs

Four parts: `rlhf doctor`; a GRPO step of ours beside TRL's (scripts/bench/gpu.py); the same model trained while it
generates by itself, with vLLM in its process and with a vLLM server; the memory that `rlhf check` estimates beside what
a run holds (scripts/bench/memory.py). Without a GPU the page has toy numbers of a CPU, which measure nothing, and says
of every way that cannot run here why.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from scripts.bench.gpu import GPU, TINY, World, make

ROOT = Path(__file__).parents[2]
WAYS = {
    "the model itself": ["launch.rollout=hf"],
    "vLLM in its process": ["launch.rollout=vllm"],
    "a vLLM server": ["launch.rollout=vllm_server", "launch.rollout_gpus=1"],
}
PHASES = ("generation", "old_logps", "forward", "backward", "optimizer")
SPREAD = """
def spread(completion_ids, **columns):
    \"\"\"No two answers score alike: a row whose advantage is 0 would be skipped.\"\"\"
    return [sum(ids) * 7919 % 10007 / 10007 for ids in completion_ids]
"""
STEPS = 4
"""The first compiles and allocates, and is not counted."""


def words(world: World, way: list[str]) -> list[str]:
    """Return what is typed for a run of a few steps, one round each."""
    args = {"per_device_train_batch_size": world.micro_batch, "steps_per_generation": world.rows // world.micro_batch}
    args |= {"gradient_accumulation_steps": world.rows // world.micro_batch, "num_generations": 8}
    args |= {"max_completion_length": world.limit, "max_steps": STEPS, "logging_steps": 1, "save_strategy": "no"}
    typed = ["trainer=grpo", "model=local", "model.path=policy", "data=file", "data.path=prompts.jsonl", "track=none"]
    on = ["launch.device=cuda", "launch.processes=1"] if world.device == "cuda" else ["launch.device=cpu"]
    return [
        *typed,
        "rewards.spread.fn=./spread.py:spread",
        *(f"trainer.args.{k}={v}" for k, v in args.items()),
        *on,
        *way,
    ]


def rlhf(place: Path, *typed: str) -> subprocess.CompletedProcess[str]:
    """Run our command in that folder."""
    path = f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"
    environment = {**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "RLHF_CACHE": str(place / "cache")}
    command = [sys.executable, "-m", "rlhf_cli", *typed]
    return subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, check=False)


def measured(place: Path, world: World, name: str) -> str:
    """Return a line of the table of ways: tokens a second and the share of each phase, or why not."""
    typed = words(world, WAYS[name])
    checked = rlhf(place, "check", *typed, "--json")
    if checked.returncode:
        problem = json.loads(checked.stdout)["problems"][0]
        return f"| {name} | not measured here: {problem['what']}; {problem['got']} |" + " |" * len(PHASES)
    run = f"run.name={name.replace(' ', '-')}"
    trained = rlhf(place, "train", *typed, run)
    if trained.returncode:
        return f"| {name} | failed: {(trained.stderr or trained.stdout).strip().splitlines()[-1]} |" + " |" * len(
            PHASES
        )
    (file,) = place.glob(f"runs/*/{name.replace(' ', '-')}/metrics.jsonl")
    logged = [json.loads(line) for line in file.read_text().splitlines()]
    steps = [one for one in logged if "completions/mean_length" in one][1:]
    rate = statistics.median(one["completions/mean_length"] * world.rows / one["time/elapsed_s"] for one in steps)
    shares = [statistics.median(one.get(f"time/share/{phase}", 0.0) for one in steps) for phase in PHASES]
    return f"| {name} | {rate:.0f} | " + " | ".join(f"{share:.2f}" for share in shares) + " |"


def ways(world: World) -> list[str]:
    """Return the table of the ways to generate."""
    heading = [
        "| what generates | tokens of answers a second | " + " | ".join(f"share of {one}" for one in PHASES) + " |"
    ]
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        make(place, world)
        (place / "spread.py").write_text(SPREAD)
        return [*heading, "|---" * (2 + len(PHASES)) + "|", *(measured(place, world, way) for way in WAYS)]


def script(*typed: str) -> str:
    """Return what another script prints."""
    command = [sys.executable, "-m", *typed]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else f"failed:\n{done.stderr.strip()[-2000:]}"


def main() -> None:
    """Print the page."""
    has_gpu = torch.cuda.is_available()
    world = GPU if has_gpu else TINY
    if not has_gpu:
        print("There is no GPU that torch can use here: these are toy numbers of a CPU, and measure nothing.\n")
    print("## What is there\n\n" + script("rlhf_cli", "doctor"), flush=True)
    toy = [] if has_gpu else ["--tiny", "--pairs", "1"]
    print("\n## A step\n\n" + script("scripts.bench.gpu", *toy), flush=True)
    print("\n## What generates\n\n" + "\n".join(ways(world)), flush=True)
    few = ["--device", "cuda"] if has_gpu else ["--only", "GRPO"]
    print("\n## Memory, estimated and measured\n\n" + script("scripts.bench.memory", *few))


if __name__ == "__main__":
    main()
