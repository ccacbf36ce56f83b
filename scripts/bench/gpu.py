"""Measure a whole GRPO step of a 0.5B model on a GPU in bf16: TRL's own trainer and ours, and lower bounds.

    python -m scripts.bench.gpu [--pairs 3] [--tiny | --smollm2]

A Llama of 0.47 billion random weights, 32,768 tokens, 64 prompts of 64 to 256 tokens, 8 answers each, log-normal
lengths with a mean of 300 and at most 1,024, no KL penalty. Each side runs in its own process, in turn. The lower
bounds use this device's speed in a large matrix product and in a copy: 6 FLOP for each parameter and real token of the
update, where a group's prompt counts once and needs no head; the weights read once per token of the longest answer.
`--tiny` runs toy numbers on a CPU in float32, only to test the script.

`--smollm2` trains a LoRA adapter of SmolLM2 (135M, after `make real`) on 16 answers of at most 32 tokens, on the GPU or
a CPU; frozen weights have no gradient, so the bound is 4 FLOP. With ACCELERATE_TORCH_DEVICE=pretend:0 all sides train
on the pretended device of tests/device.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging

from scripts.bench.step_models import EOS, make_policy, ragged
from scripts.bench.step_sides import PRETENDED, SIDES, Step, StepClock, Taken, install, read_taken
from scripts.bench.whole_step import REAL_END, make_real


@dataclass(frozen=True)
class World:
    """A model and its data: a Llama of that shape, or {} for SmolLM2's adapter on sums.

    prompts: least and most tokens of a prompt; mean, limit: of an answer's length; end: the token that ends an answer.
    """

    shape: dict[str, int]
    vocab: int
    rows: int
    micro_batch: int
    prompts: tuple[int, int]
    mean: float
    limit: int
    device: str
    end: int = EOS

    @property
    def is_real(self) -> bool:
        """Return whether SmolLM2 is trained."""
        return not self.shape


LARGE = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16}
SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
GPU = World(LARGE, 32_768, 64 * 8, 16, (64, 256), 300, 1024, "cuda")
TINY = World(SMALL, 128, 2 * 8, 8, (4, 8), 8, 16, "cpu")
SMOLLM2 = World({}, 49_152, 2 * 8, 8, (0, 0), 16, 32, "cpu", REAL_END)


@dataclass(frozen=True)
class Floor:
    """The device's floating point operations and bytes per second."""

    flop_s: float
    byte_s: float


def is_pretended() -> bool:
    """Return whether the environment asks for the pretended device."""
    return os.environ.get("ACCELERATE_TORCH_DEVICE", "").startswith(PRETENDED)


def python() -> list[str]:
    """Return the command that runs a module: Python, with the pretended device if the environment asks for it."""
    return [sys.executable, "-m", *(["tests.device.run_module"] if is_pretended() else [])]


def world_here(*, is_real: bool, is_tiny: bool) -> World:
    """Return the world for the device of this machine."""
    world = SMOLLM2 if is_real else TINY if is_tiny else GPU
    if is_pretended():
        return replace(world, device=PRETENDED)
    return replace(world, device="cuda") if is_real and torch.cuda.is_available() else world


def make(folder: Path, world: World) -> tuple[int, int]:
    """Write policy/ and prompts.jsonl into a new folder; return the number of multiplied parameters in the body
    (without the embedding) and in the head.
    """
    if world.is_real:
        make_real(folder)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder / "policy"))
        return _counted(model)
    folder.mkdir()
    dtype = torch.bfloat16 if world.device == "cuda" else None
    policy = make_policy(folder, vocab=world.vocab, prompts=world.prompts, shape=world.shape, dtype=dtype)
    return _counted(policy)


def _counted(model: PreTrainedModel) -> tuple[int, int]:
    body, (embedding, head) = model.base_model, (model.get_input_embeddings(), model.get_output_embeddings())
    return sum(weight.numel() for weight in body.parameters()) - embedding.weight.numel(), head.weight.numel()


def floor(device: str) -> Floor:
    """Return the fastest of five matrix products and of five copies in the device's precision."""
    side, dtype = (8192, torch.bfloat16) if device == "cuda" else (512, torch.float32)
    a, b = (torch.randn(side, side, dtype=dtype, device=device) for _ in range(2))
    into = torch.empty_like(a)
    now_s = StepClock(Path(), Step("", "grpo", [], device=device), None).now_s
    taken: dict[str, list[float]] = {"product": [], "copy": []}
    for _ in range(6):
        for name in taken:
            began = now_s()
            torch.mm(a, b, out=into) if name == "product" else into.copy_(a)
            taken[name].append(now_s() - began)
    product, copy = (min(seconds[1:]) for seconds in taken.values())
    return Floor(2 * side**3 / product, 2 * a.numel() * a.element_size() / copy)


def turn(side: str, step: Step) -> Taken:
    """Measure a step in its own process. Raise SystemExit with its output if it fails."""
    out, said = Path(step.folder, "taken.json"), Path(step.folder, "said.txt")
    out.unlink(missing_ok=True)
    root = os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")]))
    quiet = {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "RLHF_CACHE": f"{step.folder}/cache"}
    environment = {**os.environ, **quiet, "PYTHONPATH": root, "CUDA_VISIBLE_DEVICES": _first_gpu()}
    command = [*python(), "scripts.bench.gpu", "--side", side, json.dumps(asdict(step)), str(out)]
    with said.open("wb") as stream:
        subprocess.run(command, cwd=step.folder, env=environment, stdout=stream, stderr=stream)
    if not out.exists():
        raise SystemExit(f"{side} failed:\n{said.read_text()}")
    return read_taken(out)


def attention_of(folder: Path) -> str:
    """Return how packed rows attended in our newest run, and the warnings of its log."""
    newest = max(folder.rglob("provenance.json"), key=lambda file: file.stat().st_mtime)
    said = json.loads(newest.read_text()).get("attention", "rows did not go packed")
    log = newest.with_name("log.txt")
    warnings = [line for line in log.read_text().splitlines() if "attend row by row" in line] if log.exists() else []
    return "; then ".join([said, *warnings])


def _first_gpu() -> str:
    """Return the first visible GPU; TRL would use several."""
    return os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]


def table(took: dict[str, list[Taken]], step: Step, parameters: tuple[int, int], limits: Floor) -> list[str]:
    """Return the lines of the table; `parameters` of body and head."""
    answers, weight_bytes = sum(step.lengths), sum(parameters) * (2 if step.on_gpu else 4)
    prompts = (max(step_taken.tokens for step_taken in took["stock"]) - answers) / step.group
    multiplied = parameters[0] * (answers + prompts) + parameters[1] * answers
    floors = {
        "generation": max(step.lengths) * weight_bytes / limits.byte_s,
        "update": (4 if step.lora else 6) * multiplied / limits.flop_s,
    }
    found = {side: {name: statistics.median(values) for name, values in _figures(taken, answers).items()}
             for side, taken in took.items()}  # fmt: skip
    lines = ["| | ours | TRL 1.16 | ours / TRL | floor |", "|---|---|---|---|---|"]
    for name, ours in found["ours"].items():
        if name.startswith("peak") and not ours:
            continue
        theirs = found["stock"].get(name, 0.0)
        ratio = f"{ours / theirs:.3f}" if theirs else ""
        least = f"{floors[name.split(',')[0]]:.3g}" if name.split(",")[0] in floors else ""
        lines.append(f"| {name} | {_shown(ours)} | {_shown(theirs)} | {ratio} | {least} |")
    return lines


def _shown(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"


def _figures(taken: list[Taken], answers: int) -> dict[str, list[float]]:
    """Return the numbers of one side, one per turn."""
    figures = {
        "tokens of answers a second": [answers / turn.step_s for turn in taken],
        "step, s": [turn.step_s for turn in taken],
        "generation, s": [turn.generation_s for turn in taken],
        "update, s": [turn.step_s - turn.generation_s for turn in taken],
        "peak memory, MiB": [turn.peak_mb for turn in taken],
        "slots of the training pass": [float(turn.slots) for turn in taken],
    }
    for phase in ("generation", "log-probabilities", "forward", "backward"):
        figures[f"share of {phase}"] = [turn.phases.get(phase, 0.0) / turn.step_s for turn in taken]
    figures["share of the rest"] = [1 - sum(turn.phases.values()) / turn.step_s for turn in taken]
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=3)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--tiny", action="store_true", help="toy numbers on a CPU, to see that it runs")
    which.add_argument("--smollm2", action="store_true", help="SmolLM2 instead of random weights, also on a CPU")
    parser.add_argument("--side", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        side, said, out = options.side
        given = json.loads(said)
        step = Step(**{**given, "words": tuple(given["words"])})
        install(StepClock(Path(out), step, None), step)
        SIDES[side](step)
        return
    world = world_here(is_real=options.smollm2, is_tiny=options.tiny)
    if world.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("there is no GPU that torch can use here; --tiny runs the same with toy numbers on a CPU")
    logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary, "world")
        parameters = make(place, world)
        took: dict[str, list[Taken]] = {"ours": [], "stock": []}
        limits = floor("cuda" if world.device == "cuda" else "cpu")
        torch.cuda.empty_cache()
        for pair in range(options.pairs):
            lengths = ragged(world.rows, world.limit, 0, mean=world.mean, deviation=0.9)
            sizes = {"lengths": lengths, "micro_batch": world.micro_batch, "limit": world.limit, "end": world.end}
            step = Step(str(place), "grpo", beta=0.0, device=world.device, lora=world.is_real, **sizes)
            for side in ("ours", "stock") if pair % 2 else ("stock", "ours"):
                took[side].append(turn(side, step))
                print(f"{pair} {side}: a step {took[side][-1].step_s:.2f} s", flush=True)
        attention = attention_of(place)
    what = torch.cuda.get_device_name() if step.on_gpu else "a pretended device" if is_pretended() else "a CPU"
    print(f"\n{what}; torch {torch.__version__}; {sum(parameters) / 1e6:.3g}M parameters multiply")
    print(f"medians of {options.pairs}; seconds {'by the wall' if step.on_gpu else 'of the CPU'}")
    print(f"{limits.flop_s / 1e12:.3g} TFLOP/s in a product, {limits.byte_s / 1e9:.3g} GB/s in a copy\n")
    print("\n".join(table(took, step, parameters, limits)))
    print(f"\nattention of ours: {attention}")


if __name__ == "__main__":
    main()
