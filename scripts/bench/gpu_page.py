"""Print one page about this machine's GPU: doctor, the cost of a step, the ways to generate, and memory.

    python -m scripts.bench.gpu_page [--smollm2] [--pretended]          # make bench-gpu [PAGE=--smollm2]

Four parts: `rlhf doctor`; a GRPO step of ours beside TRL's (scripts/bench/gpu.py); the same model trained with
generation by itself, by vLLM in its process and by a vLLM server; the memory that `rlhf check` estimates beside the
measured memory (scripts/bench/memory.py). Without a GPU the page shows toy numbers of a CPU and why a way cannot run
here.

`--smollm2` trains a LoRA adapter of SmolLM2 (135M, after `make real`) instead of random weights, also on a CPU.
`--pretended` trains on the device of tests/device/pretended_device.py, which refuses what a GPU refuses. If a part
fails, the others are printed and the exit code is 1.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable
from pathlib import Path

import torch
from transformers.utils import logging

from rlhf_cli.errors import ModelError
from rlhf_cli.models.cache import model_folder
from rlhf_cli.plan.launch_plan import INSTALL_VLLM
from scripts.bench.gpu import World, is_pretended, make, python, world_here
from scripts.bench.memory import SERIES, as_lines, in_a_process, link_smollm2, make_place
from scripts.bench.step_sides import PRETENDED

ROOT = Path(__file__).parents[2]
WIDTH = 80
WAYS = {
    "the model itself": ["launch.rollout=hf"],
    "vLLM in its process": ["launch.rollout=vllm"],
    "a vLLM server": ["launch.rollout=vllm_server", "launch.rollout_gpus=1"],
}
PHASES = {
    "generation": "generation",
    "old_logps": "log-probabilities",
    "forward": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
}
"""Phase in metrics.jsonl -> its name on the page."""
SPREAD = """
def spread(completion_ids, **columns):
    \"\"\"No two answers score alike: a row whose advantage is 0 would be skipped.\"\"\"
    return [sum(ids) * 7919 % 10007 / 10007 for ids in completion_ids]
"""
STEPS = 4
"""The first one compiles and allocates, and is not counted."""
NEEDS_VLLM = f"""\
To measure vLLM, on a machine with a GPU (a server needs a second one):
  {INSTALL_VLLM} && make bench-gpu
On a CPU, whether it works and not how fast: make test-vllm"""


class Failed(Exception):
    """A part of the page failed."""


class CannotRunHere(Exception):
    """A way to generate cannot run on this machine."""


def run(command: list[str], place: Path = ROOT, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, **variables, "PYTHONPATH": path}
    return subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, check=False)


def last_lines(done: subprocess.CompletedProcess[str]) -> str:
    """Return the exit code and the last lines of a failed command."""
    lines = (done.stdout + done.stderr).strip().splitlines()
    return "\n".join([f"failed, exit code {done.returncode}:", *lines[-20:]])


def output(done: subprocess.CompletedProcess[str]) -> str:
    """Return the output of a command. Raise Failed if it failed."""
    if done.returncode:
        raise Failed(last_lines(done))
    return done.stdout.strip()


def words(world: World, way: list[str]) -> list[str]:
    """Return the words for a run of a few steps, one round each."""
    args = {"per_device_train_batch_size": world.micro_batch, "steps_per_generation": world.rows // world.micro_batch}
    args |= {"gradient_accumulation_steps": world.rows // world.micro_batch, "num_generations": 8}
    args |= {"max_completion_length": world.limit, "max_steps": STEPS, "logging_steps": 1, "save_strategy": "no"}
    args |= {"gradient_checkpointing": "false"}
    args |= {"dataloader_pin_memory": "false"} if world.device == PRETENDED else {}
    typed = ["trainer=grpo", "model=local", "model.path=policy", "data=file", "data.path=prompts.jsonl", "track=none"]
    on = ["launch.device=cuda", "launch.processes=1"] if world.device == "cuda" else ["launch.device=auto"]
    return [
        *typed,
        "rewards.spread.fn=./spread.py:spread",
        *(f"trainer.args.{k}={v}" for k, v in args.items()),
        *(["model.lora.r=16", "model.lora.lora_alpha=32"] if world.is_real else []),
        *on,
        *way,
    ]


def measured(place: Path, world: World, name: str) -> list[str]:
    """Return tokens per second and the share of each phase. Raise CannotRunHere or Failed."""
    typed, cache = words(world, WAYS[name]), {"HF_HUB_OFFLINE": "1", "RLHF_CACHE": str(place / "cache")}
    checked = run([sys.executable, "-m", "rlhf_cli", "check", *typed, "--json"], place, **cache)
    if checked.returncode:
        _raise_problems(checked)
    run_name = name.replace(" ", "-")
    output(run([*python(), "rlhf_cli", "train", *typed, f"run.name={run_name}"], place, **cache))
    (file,) = place.glob(f"runs/*/{run_name}/metrics.jsonl")
    logged = [json.loads(line) for line in file.read_text().splitlines()]
    steps = [event for event in logged if "completions/mean_length" in event][1:]
    rate = statistics.median(event["completions/mean_length"] * world.rows / event["time/elapsed_s"] for event in steps)
    shares = [statistics.median(event.get(f"time/share/{phase}", 0.0) for event in steps) for phase in PHASES]
    return [f"{rate:.3g}", *(f"{share:.2f}" for share in [*shares, 1 - sum(shares)])]


def _raise_problems(checked: subprocess.CompletedProcess[str]) -> None:
    """Raise CannotRunHere if only the place of vLLM is wrong, else Failed."""
    try:
        problems = json.loads(checked.stdout)["problems"]
    except (ValueError, KeyError, TypeError):
        raise Failed(last_lines(checked)) from None
    if all(problem["where"].startswith("launch.rollout") for problem in problems):
        raise CannotRunHere("; ".join(problem["what"] for problem in problems))
    raise Failed("failed: " + "; ".join(f"{problem['what']}: {problem['where']}" for problem in problems))


def ways(world: World) -> str:
    """Return the table of the ways to generate, and the reason for each missing way. Raise Failed with the same text if
    one failed.
    """
    columns: dict[str, list[str]] = {}
    missing: dict[str, str] = {}
    broken: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary, "world")
        make(place, world)
        (place / "spread.py").write_text(SPREAD)
        for name in WAYS:
            try:
                columns[name] = measured(place, world, name)
            except CannotRunHere as error:
                missing[name] = f"{name}: not measured here: {error}"
            except Exception as error:
                broken[name] = f"{name}: {error}"
    lines = [f"{STEPS} steps of `rlhf train` each, medians without the first; seconds by the wall.", ""]
    if columns:
        figures = ["tokens of answers a second", *(f"share of {phase}" for phase in [*PHASES.values(), "the rest"])]
        lines += [_row(["", *columns]), "|---" * (1 + len(columns)) + "|"]
        lines += [_row([figure, *cells]) for figure, *cells in zip(figures, *columns.values(), strict=True)]
        lines += [""]
    lines += [*missing.values(), *([NEEDS_VLLM] if missing else []), *broken.values()]
    if broken:
        raise Failed("\n".join(lines))
    return "\n".join(lines)


def doctor(_: World) -> str:
    """Return the output of `rlhf doctor`."""
    return output(run([sys.executable, "-m", "rlhf_cli", "doctor"], COLUMNS=str(WIDTH)))


def step(world: World) -> str:
    """Return the cost of a step of ours and TRL's."""
    which = ["--smollm2"] if world.is_real else []
    if world.device != "cuda":
        which = [*(which or ["--tiny"]), "--pairs", "1"]
    return output(run([sys.executable, "-m", "scripts.bench.gpu", *which]))


def memory(world: World) -> str:
    """Return the table of memory."""
    if world.device == PRETENDED:
        return "not measured: a pretended device has no memory of its own. On this machine's: make bench-gpu"
    on_gpu, is_real = world.device == "cuda", world.is_real
    with tempfile.TemporaryDirectory() as temporary:
        (link_smollm2 if is_real else make_place)(Path(temporary))
        names = SERIES if on_gpu else ["GRPO, LoRA" if is_real else "GRPO"]
        found = [in_a_process(name, Path(temporary), world.device, is_real=is_real) for name in names]
    what = "SmolLM2" if is_real else "A Llama of 42 million random weights"
    units = "MB of 10^6 bytes, estimated and measured; peak: the larger estimate over the larger measurement."
    return "\n".join([f"{what} on the {'GPU' if on_gpu else 'CPU'}; {units}", "", *as_lines(found)])


Part = Callable[[World], str]
PARTS: dict[str, Part] = {
    "What is there": doctor,
    "A step": step,
    "What generates": ways,
    "Memory, estimated and measured": memory,
}


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def fitted(text: str) -> str:
    """Return the text with folded lines, and with aligned tables where the page is wide enough."""
    lines, table = [], []
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            table.append(line)
            continue
        lines += [*_aligned(table), *(textwrap.wrap(line, WIDTH, subsequent_indent="  ") or [""])]
        table = []
    return "\n".join(lines).rstrip()


def _aligned(table: list[str]) -> list[str]:
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    widths = [max(3, *map(len, column)) for column in zip(*rows, strict=True)]
    rows = [["-" * width if cell == "---" else cell for cell, width in zip(row, widths, strict=True)] for row in rows]
    padded = [_row([cell.ljust(width) for cell, width in zip(row, widths, strict=True)]) for row in rows]
    return padded if max(map(len, padded), default=0) <= WIDTH else table


def page(world: World) -> int:
    """Print the parts and return the exit code."""
    broken = []
    for title, part in PARTS.items():
        print(f"\n## {title}\n", flush=True)
        try:
            text = part(world)
        except (Exception, SystemExit) as error:
            broken.append(title)
            text = str(error) if isinstance(error, Failed) else f"failed: {type(error).__name__}: {error}"
        print(fitted(text), flush=True)
    if broken:
        print(f"\nfailed: {', '.join(broken)}")
    return 1 if broken else 0


def about(world: World) -> str:
    """Return a sentence about the machine that the page was made on."""
    if world.device == PRETENDED:
        return "A pretended device on a CPU: this shows what runs on it without a violation, and measures nothing."
    if world.device == "cpu":
        worth = "SmolLM2 on one thread of a CPU" if world.is_real else "toy numbers of a CPU, and measure nothing"
        return f"There is no GPU that torch can use here: these are {worth}."
    return torch.cuda.get_device_name()


def main() -> int:
    """Print the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smollm2", action="store_true", help="train SmolLM2's adapter instead of random weights")
    parser.add_argument("--pretended", action="store_true", help="train on the pretended device of the tests")
    options = parser.parse_args()
    if options.pretended:
        os.environ["ACCELERATE_TORCH_DEVICE"] = f"{PRETENDED}:0"
    if options.smollm2:
        try:
            folder = model_folder("package:smollm2", where="--smollm2")
        except ModelError as error:
            parser.error(str(error))
        if not Path(str(folder)).is_dir():
            parser.error("SmolLM2 is not in the cache; type: make real")
    has_gpu = torch.cuda.is_available() and not is_pretended()
    world = world_here(is_real=options.smollm2, is_tiny=not has_gpu)
    if not has_gpu:
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    logging.disable_progress_bar()
    print(fitted(about(world)))
    return page(world)


if __name__ == "__main__":
    sys.exit(main())
