"""Generation without dead rows against transformers' own `generate`, the same answers on both sides, turn by turn.

usage: PYTHONPATH=. python -m scripts.bench.generation [--pairs 5] [--rows 32] [--group 8] [--limit 128] [--vocab 8192]

A Llama of random weights (12.6M parameters with 8192 tokens) samples answers whose lengths are drawn beforehand, for
every pair others: ragged (log-normal, mean 36, at most 128), or all equal. Prompts have 9 to 24 tokens, each repeated
for a group. Every turn is a fork of one process, so that its peak memory is its own; CPU seconds are those of
`generate` alone. Both sides begin from one seed, and have to write the same tokens.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, LogitsProcessor, LogitsProcessorList

from rlhf_cli.models import live_eligibility
from rlhf_cli.models.live_generation import Generating
from scripts.bench.measures import Measure, of_pairs, write

PAD, EOS = 0, 1
SHAPE = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 4}
MEAN, DEVIATION = 36, 0.9  # of the length, and of its logarithm


class EndsInTime(LogitsProcessor):
    """Ends as many rows after n tokens as have n, the first that are still going on: the same ones on both sides."""

    def __init__(self, lengths: Tensor, width: int, end: int = EOS) -> None:
        self.counts, self.width, self.end = torch.bincount(lengths, minlength=int(lengths.max()) + 2), width, end

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:  # type: ignore[override]
        """Return the scores with EOS and padding impossible, but for rows that end, for which nothing else is left."""
        scores[:, [PAD, self.end]] = -torch.inf
        ending = int(self.counts[input_ids.shape[1] - self.width + 1])
        if ending:
            rows = (~(input_ids[:, self.width :] == self.end).any(dim=1)).nonzero().squeeze(1)[:ending]
            scores[rows] = -torch.inf
            scores[rows, self.end] = 0.0
        return scores


@dataclass(frozen=True)
class World:
    """What is generated. `lengths` (rows,) of the answers, `end` the token that ends one."""

    model: LlamaForCausalLM
    ids: Tensor
    mask: Tensor
    lengths: Tensor
    end: int = EOS


@dataclass(frozen=True)
class Turn:
    """What one took. `slots`: decoded, a row and step each; of stock, all rows until the longest ends."""

    cpu_s: float
    peak_mb: float
    slots: int
    tokens: int
    check: int


def world(model: LlamaForCausalLM, options: argparse.Namespace, seed: int, *, is_ragged: bool) -> World:
    """Draw prompts and lengths."""
    torch.manual_seed(seed)
    groups, width = options.rows // options.group, 24
    ids, mask = torch.full((options.rows, width), PAD), torch.zeros(options.rows, width, dtype=torch.long)
    for group in range(groups):
        length = int(torch.randint(9, width + 1, ())) if group else width
        rows = slice(group * options.group, (group + 1) * options.group)
        ids[rows, width - length :] = torch.randint(2, options.vocab, (length,))
        mask[rows, width - length :] = 1
    drawn = (math.log(MEAN) - DEVIATION**2 / 2 + DEVIATION * torch.randn(options.rows)).exp().round().long()
    lengths = drawn.clamp(1, options.limit) if is_ragged else torch.full((options.rows,), options.limit)
    return World(model, ids, mask, lengths)


def generate(given: World, limit: int, *, is_plain: bool) -> Turn:
    """Generate once and account for it."""
    generating = Generating(is_plain=is_plain)
    width = given.ids.shape[1]
    config = GenerationConfig(
        do_sample=True, top_k=0, max_new_tokens=limit, pad_token_id=PAD, eos_token_id=given.end, disable_compile=True
    )
    torch.manual_seed(1)
    began = time.process_time()
    found = generating.generate(
        given.model.generate,
        input_ids=given.ids,
        attention_mask=given.mask,
        generation_config=config,
        logits_processor=LogitsProcessorList([EndsInTime(given.lengths, width, given.end)]),
    )
    cpu_s = time.process_time() - began
    assert generating.mode is not None
    assert generating.mode.name == ("plain" if is_plain else "live"), generating.mode.why
    answers = found[:, width:]
    slots = generating.decoded_slots if not is_plain else len(answers) * (answers.shape[1] - 1)
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    check = int((answers * torch.arange(1, answers.numel() + 1).view_as(answers)).sum())
    return Turn(cpu_s, peak_mb, slots, int((answers != PAD).sum()), check)


def in_a_fork(given: World, limit: int, *, is_plain: bool) -> Turn:
    """Return what `generate` returns in a fork of this process."""
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        os.write(write, json.dumps(asdict(generate(given, limit, is_plain=is_plain))).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        told = pipe.read()
    os.waitpid(child, 0)
    return Turn(**json.loads(told))


def main() -> None:
    """Print a line a world."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {"pairs": 5, "rows": 32, "group": 8, "limit": 128, "vocab": 8192}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)  # a fork has no other threads
    live_eligibility.ROW_BY_ROW = live_eligibility.ROW_BY_ROW | {EndsInTime}
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=options.vocab, tie_word_embeddings=False, **SHAPE)).eval()
    generate(world(model, options, 0, is_ragged=True), 2, is_plain=True)  # what is loaded once
    measures: list[Measure] = []
    for name, is_ragged in {"ragged": True, "equal": False}.items():
        pairs: list[tuple[Turn, Turn]] = []
        for number in range(options.pairs):
            given = world(model, options, number, is_ragged=is_ragged)
            turns = [in_a_fork(given, options.limit, is_plain=number % 2 == other) for other in (0, 1)]
            pairs.append((turns[1], turns[0]) if number % 2 == 0 else (turns[0], turns[1]))
        ratios = [ours.cpu_s / stock.cpu_s for ours, stock in pairs]
        slots, stock_slots, tokens = (
            sum(counts) for counts in zip(*((a.slots, b.slots, a.tokens) for a, b in pairs), strict=True)
        )
        cpu_s = [statistics.median(turns) for turns in zip(*((a.cpu_s, b.cpu_s) for a, b in pairs), strict=True)]
        peak_mb = [max(turns) for turns in zip(*((a.peak_mb, b.peak_mb) for a, b in pairs), strict=True)]
        print(f"{name}: {tokens} tokens in all turns, a mean of {tokens / options.rows / len(pairs):.1f} an answer")
        print(f"  CPU s      {cpu_s[0]:.2f} against {cpu_s[1]:.2f}", end="")
        print(f", ratio {statistics.median(ratios):.3f} ({min(ratios):.3f}-{max(ratios):.3f}, {len(pairs)} pairs)")
        print(f"  slots      {slots} against {stock_slots} decoded")
        print(f"  peak MB    {peak_mb[0]:.0f} against {peak_mb[1]:.0f}")
        print(f"  the same tokens: {all(a.check == b.check for a, b in pairs)}", flush=True)
        of_cpu, of_peak = ([(getattr(a, of), getattr(b, of)) for a, b in pairs] for of in ("cpu_s", "peak_mb"))
        goal = 0.45 if is_ragged else 1.02
        measures.append(of_pairs(f"generation, {name}: against generate", "time", "CPU s", of_cpu, goal))
        measures.append(of_pairs(f"generation, {name}: peak memory", "memory", "MB", of_peak, 1.0))
        measures.append(
            Measure(f"generation, {name}: decoded slots a token", "counter", slots / tokens, pairs=len(pairs))
        )
    if options.json:
        write(options.json, measures)


if __name__ == "__main__":
    main()
