"""Generation of SmolLM2 on a CPU by our loop, by transformers' `generate` and by vLLM, turn by turn.

usage: .venv-vllm/bin/python -m scripts.bench.generation_vllm [--turns 3]

All three write as many tokens as were drawn beforehand, row by row, for the questions of `data=split_sums`: eight
answers each, float32, one thread, temperature 1 over the whole vocabulary. `sums`: 64 answers of 12 tokens, the limit
of exp=smollm2_sums. `ragged`: 32 answers, log-normal, mean 36, at most 128, for every turn others. vLLM has a process
of its own with its engine in it, eager, blocks of 32 tokens, and an empty prefix cache at the start of a turn; it takes
and returns token ids. Loading, and a first generation that warms up, are not counted. CPU seconds of a whole process.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
import torch
from transformers import AutoTokenizer, LlamaForCausalLM
from transformers.utils import logging

from rlhf_cli.models import live_eligibility
from scripts.bench.generation import DEVIATION, MEAN, PAD, EndsInTime, World, generate
from scripts.bench.step_sides import ragged
from scripts.bench.whole_step import REAL_END, REAL_LIMIT, make_real

GROUP, LIMIT = 8, 128
WORLDS = {"sums": 64, "ragged": 32}
"""What is generated, and how many answers at once: those of whole_step.py's `smollm2` and `smollm2_ragged`."""
ENGINES = ("ours", "transformers", "vLLM")
OF_VLLM = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_LOGGING_LEVEL": "ERROR"}


def cpu_s() -> float:
    """Return the CPU seconds of this process so far, and of those below it."""
    below = [child.cpu_times() for child in psutil.Process().children(recursive=True)]
    return time.process_time() + sum(times.user + times.system for times in below)


def serve(pipe: Connection, model: str) -> None:
    """Load vLLM; for every (prompts, lengths) that comes, send CPU seconds and the number of tokens."""
    import vllm

    engine = vllm.LLM(
        model=model,
        dtype="float32",
        enforce_eager=True,
        max_model_len=2 * LIMIT,
        block_size=32,
        kv_cache_memory_bytes=2**30,
    )
    pipe.send(vllm.__version__)
    while True:
        prompts, lengths = pipe.recv()
        params: Any = [
            vllm.SamplingParams(temperature=1.0, max_tokens=length, ignore_eos=True, detokenize=False)
            for length in lengths
        ]
        assert engine.reset_prefix_cache()
        began = cpu_s()
        found = engine.generate([{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False)
        pipe.send((cpu_s() - began, sum(len(one.outputs[0].token_ids) for one in found), torch.get_num_threads()))


def draw(world: str, folder: Path, model: LlamaForCausalLM, turn: int, rows: int) -> World:
    """Return the questions of a turn and the lengths of its answers, in the order in which `EndsInTime` ends them."""
    tokenizer = AutoTokenizer.from_pretrained(folder / "policy")
    lines = (folder / "prompts.jsonl").read_text().splitlines()
    asked = [json.loads(lines[(turn * rows // GROUP + n) % len(lines)])["prompt"] for n in range(rows // GROUP)]
    prompts = [tokenizer.apply_chat_template(one, add_generation_prompt=True)["input_ids"] for one in asked]
    width = max(map(len, prompts))
    ids = torch.tensor([[PAD] * (width - len(one)) + one for one in prompts for _ in range(GROUP)])
    mask = torch.tensor([[0] * (width - len(one)) + [1] * len(one) for one in prompts for _ in range(GROUP)])
    lengths = ragged(rows, LIMIT, turn, mean=MEAN, deviation=DEVIATION) if world == "ragged" else [REAL_LIMIT] * rows
    return World(model, ids, mask, torch.tensor(sorted(lengths)), REAL_END)


def take(engine: str, given: World, pipe: Connection) -> tuple[float, int]:
    """Return CPU seconds and tokens of one turn."""
    if engine != "vLLM":
        took = generate(given, int(given.lengths.max()), is_plain=engine == "transformers")
        return took.cpu_s, took.tokens
    prompts = [row[mask.bool()].tolist() for row, mask in zip(given.ids, given.mask, strict=True)]
    pipe.send((prompts, given.lengths.tolist()))
    seconds, tokens, threads = pipe.recv()
    assert threads == torch.get_num_threads() == 1
    return seconds, tokens


def lines_of(world: str, found: dict[str, list[tuple[float, int]]]) -> list[str]:
    """Return two lines of the table: medians of the turns, the ratios with their ranges."""
    seconds = [f"{statistics.median(cpu for cpu, _ in found[engine]):.2f}" for engine in ENGINES]
    rates = [f"{statistics.median(tokens / cpu for cpu, tokens in found[engine]):.0f}" for engine in ENGINES]
    for other in ENGINES[1:]:
        ratios = [a / b for (a, _), (b, _) in zip(found["ours"], found[other], strict=True)]
        seconds.append(f"{statistics.median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f})")
    return [
        f"| {world}, CPU s | {' | '.join(seconds)} |",
        f"| {world}, tokens a CPU second | {' | '.join(rates)} | | |",
    ]


def main() -> None:
    """Print a line a turn, and a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    os.environ |= {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", **OF_VLLM}
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    live_eligibility.ROW_BY_ROW = live_eligibility.ROW_BY_ROW | {EndsInTime}
    table = ["| | " + " | ".join(ENGINES) + " | ours / transformers | ours / vLLM |", "|---" * 6 + "|"]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary, "real")
        make_real(folder)
        spawn = multiprocessing.get_context("spawn")
        pipe, theirs = spawn.Pipe()
        server = spawn.Process(target=serve, args=(theirs, str(folder / "policy")), daemon=True)
        server.start()
        theirs.close()
        model = LlamaForCausalLM.from_pretrained(folder / "policy", dtype=torch.float32).eval()
        print(f"vLLM {pipe.recv()}, torch {torch.__version__}", flush=True)
        for engine in ENGINES:
            take(engine, draw("sums", folder, model, 0, GROUP), pipe)
        for world, rows in WORLDS.items():
            found: dict[str, list[tuple[float, int]]] = {engine: [] for engine in ENGINES}
            for turn in range(options.turns):
                given = draw(world, folder, model, turn, rows)
                for engine in (*ENGINES[turn % 3 :], *ENGINES[: turn % 3]):
                    seconds, tokens = take(engine, given, pipe)
                    assert tokens == int(given.lengths.sum())
                    found[engine].append((seconds, tokens))
                    print(f"{world} {turn} {engine}: {tokens} tokens, {seconds:.2f} CPU s", flush=True)
            table += lines_of(world, found)
            print("\n".join(["", *table, ""]), flush=True)
        server.terminate()


if __name__ == "__main__":
    main()
