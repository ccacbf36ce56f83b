"""Compare the estimate of a run's memory with the measured process, for a series of experiments.

    OMP_NUM_THREADS=1 python -m scripts.bench.memory [--device cuda] [--smollm2] [--only NAME ...]

On a CPU: VmHWM minus VmRSS before the policy is loaded, after a garbage collection; the mark is reset when generation
begins and ends. glibc returns freed memory at once, because the estimate counts tensors only. On a GPU:
torch.cuda.max_memory_allocated, bfloat16. The weights are random, or with --smollm2 SmolLM2's with answers of full
length. Each run takes at least two optimizer steps, so that the optimizer has its state.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

MEGABYTE = 1e6
GIVES_BACK = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"}
SHAPE = {
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 12,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 4096,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": False,
}
"""A Llama of 42 million parameters, 168 MB."""
PROMPT, ANSWER = 64, 64
REWARD = """def spread(completion_ids, **_):
    return [sum(ids) * 7919 % 10007 / 10007 for ids in completion_ids]
"""
"""Different scores for all answers: a row with advantage 0 has no gradient and needs less memory."""
ROUND = ["trainer.args.per_device_train_batch_size=8", "trainer.args.gradient_accumulation_steps=2",
         "trainer.args.num_generations=4", f"trainer.args.max_completion_length={ANSWER}",
         "rewards.spread.fn=./spread.py:spread", "data.path=prompts.jsonl"]  # fmt: skip
ROWS = ["trainer.args.per_device_train_batch_size=8", "trainer.args.gradient_accumulation_steps=1"]
PLAIN = ["trainer.args.gradient_checkpointing=false"]
SERIES: dict[str, list[str]] = {
    "GRPO": ["trainer=grpo", *ROUND, *PLAIN],
    "GRPO, gradient checkpointing": ["trainer=grpo", *ROUND, "trainer.args.gradient_checkpointing=true"],
    "GRPO, LoRA": ["trainer=grpo", *ROUND, *PLAIN, "model.lora.r=16"],
    "GRPO, beta 0.04": ["trainer=grpo", *ROUND, *PLAIN, "trainer.args.beta=0.04"],
    "PPO, own critic": ["trainer=ppo", *ROUND, *PLAIN, "trainer.args.num_generations=1",
                        "trainer.args.steps_per_generation=2", "trainer.args.num_iterations=1"],
    "PPO, LoRA critic": ["trainer=ppo", *ROUND, *PLAIN, "trainer.args.num_generations=1", "model.lora.r=16",
                         "critic.share=lora", "trainer.args.steps_per_generation=2", "trainer.args.num_iterations=1"],
    "DPO": ["trainer=dpo", *ROWS, *PLAIN, "data.path=pairs.jsonl"],
    "SFT": ["trainer=sft", *ROWS, *PLAIN, "data.path=answers.jsonl"],
    "reward model": ["trainer=reward", *ROWS, *PLAIN, "data.path=pairs.jsonl"],
    "reward model, LoRA": ["trainer=reward", *ROWS, *PLAIN, "data.path=pairs.jsonl", "model.lora.r=16"],
}  # fmt: skip
ALWAYS = ["model=local", "model.path=model", "data=file", "track=none", "run.name=run", "trainer.args.max_steps=2",
          "trainer.args.save_strategy=no", "trainer.args.logging_steps=1"]  # fmt: skip
WORDS = {name: [*words, *ALWAYS] for name, words in SERIES.items()}


def make_place(place: Path, shape: dict[str, Any] = SHAPE) -> None:
    """Write the model and the data of all runs into an empty folder."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from rlhf_cli.models.byte_tokenizer import byte_tokenizer

    torch.manual_seed(0)
    tokenizer = byte_tokenizer(shape["max_position_embeddings"])
    ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id, "bos_token_id": None}
    LlamaForCausalLM(LlamaConfig(**shape, **ids)).save_pretrained(place / "model")
    tokenizer.save_pretrained(place / "model")
    write_data(place)


def link_smollm2(place: Path) -> None:
    """Link SmolLM2's folder, made on first use (`make real`), and write the data of all runs."""
    from rlhf_cli.models.cache import model_folder

    folder = model_folder("package:smollm2", where="--smollm2")
    assert folder is not None
    (place / "model").symlink_to(folder)
    write_data(place)


def write_data(place: Path) -> None:
    """Write prompts, answers and pairs whose lengths in bytes are those of the random model's tokens."""
    (place / "spread.py").write_text(REWARD)
    prompts = [f"{number:04d}".ljust(PROMPT, "?") for number in range(64)]
    answers = [f"{number:04d}".ljust(3 * ANSWER - 1, "!") for number in range(64)]
    rows = {
        "prompts": [{"prompt": prompt} for prompt in prompts],
        "answers": [{"prompt": prompt, "completion": answer} for prompt, answer in zip(prompts, answers, strict=True)],
        "pairs": [
            {"prompt": prompt, "chosen": answer, "rejected": answer[::-1]}
            for prompt, answer in zip(prompts, answers, strict=True)
        ],
    }
    for name, lines in rows.items():
        (place / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


class Meter:
    """Measures the peak of the process or the GPU since the last reading, in bytes above a baseline."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._baseline = 0
        self.highest = {"generation": 0, "training": 0, "saving": 0}

    def begin(self) -> None:
        """Take the memory held now as the baseline."""
        gc.collect()
        self._reset()
        self._baseline = self._highest()

    def note(self, phase: str) -> None:
        """Add the peak since the last reading to `phase` and reset it."""
        self.highest[phase] = max(self.highest[phase], self._highest() - self._baseline)
        self._reset()

    def _highest(self) -> int:
        if self._device == "cuda":
            import torch

            return int(torch.cuda.max_memory_allocated())
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))

    def _reset(self) -> None:
        if self._device == "cuda":
            import torch

            torch.cuda.reset_peak_memory_stats()
        else:
            Path("/proc/self/clear_refs").write_text("5")


def measure(name: str, device: str, words: list[str] | None = None) -> dict[str, Any]:
    """Run an experiment of the series in this process and folder; return estimate and measurement."""
    from rlhf_cli.launch.freeze import create_run
    from rlhf_cli.plan.preflight import preflight
    from rlhf_cli.plan.prepare import prepare

    on = ["launch=cpu"] if device == "cpu" else ["launch=auto", "launch.device=cuda", "launch.processes=1"]
    prepared = prepare([*(words or WORDS[name]), *on])
    plan = preflight(prepared.experiment, prepared.composed)
    folder = create_run(prepared.experiment, prepared.composed, files=plan.files)

    from rlhf_cli.launch import worker
    from rlhf_cli.trainers.assemble import policy_loading
    from rlhf_cli.trainers.assemble import trainer as assembling

    meter = Meter(device)
    find_policy: Callable[..., Any] = policy_loading.policy_path
    assemble: Callable[..., Any] = assembling.assemble

    def at_the_beginning(*args: Any) -> Any:
        meter.begin()
        return find_policy(*args)

    def watched(*args: Any, **named: Any) -> Any:
        built = assemble(*args, **named)
        save = built.save_model

        def save_model(*args: Any, **named: Any) -> None:
            meter.note("training")
            save(*args, **named)
            meter.note("saving")

        built.save_model = save_model
        if plan.batches is not None:
            generate = built._generate_and_score_completions

            def generated(inputs: Any) -> Any:
                meter.note("training")
                output = generate(inputs)
                meter.note("generation")
                return output

            built._generate_and_score_completions = generated
        return built

    policy_loading.policy_path, assembling.assemble = at_the_beginning, watched
    worker.run_rank(folder, resume=False)
    assert plan.memory is not None
    fullest = {phase: plan.memory.fullest(phase) for phase in ("generation", "training")}  # type: ignore[arg-type]
    return {
        "name": name,
        "measured": meter.highest,
        "estimated": {phase: moment.total if moment else 0 for phase, moment in fullest.items()},
        "plan": plan.memory.as_json(),
    }


def in_a_process(name: str, place: Path, device: str, *, is_real: bool = False) -> dict[str, Any]:
    """Run `measure` in its own process, whose malloc returns memory at once; is_real: with SmolLM2."""
    path = f"{Path(__file__).parents[2]}:{os.environ.get('PYTHONPATH', '')}"
    env = os.environ | GIVES_BACK | {"PYTHONPATH": path}
    command = [sys.executable, __file__, "--one", name, "--device", device, *(["--smollm2"] if is_real else [])]
    with tempfile.TemporaryDirectory(dir=place) as own:
        for shared in ("model", "spread.py", "prompts.jsonl", "answers.jsonl", "pairs.jsonl"):
            Path(own, shared).symlink_to(place / shared)
        done = subprocess.run(command, cwd=own, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name}: {done.stdout[-2000:]}{done.stderr[-4000:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def as_lines(results: list[dict[str, Any]]) -> list[str]:
    """Return a table: megabytes of both phases, estimated and measured, and the difference of the peaks."""
    lines = ["| | generation | measured | training | measured | peak | fullest moment |", "|---" * 7 + "|"]
    for result in results:
        cells = []
        for phase in ("generation", "training"):
            cells += [result["estimated"][phase], result["measured"][phase]]
        estimated, measured = max(cells[0::2]), max(cells[1::2])
        fullest = max(result["plan"]["moments"], key=lambda moment: moment["total_bytes"])
        shown = " | ".join(f"{size / MEGABYTE:.0f}" if size else "" for size in cells)
        lines.append(f"| {result['name']} | {shown} | {estimated / measured - 1:+.1%} | {fullest['what']} |")
    return lines


def main() -> None:
    """Run each experiment in its own process and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--smollm2", action="store_true", help="SmolLM2 instead of the random model")
    parser.add_argument("--only", nargs="*", choices=SERIES, default=list(SERIES))
    parser.add_argument("--json", action="store_true", help="print the parts of every moment as well")
    parser.add_argument("--one", choices=SERIES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        words = WORDS[options.one]
        if options.smollm2 and "data.path=prompts.jsonl" in words:
            words = [*words, f"trainer.args.generation_kwargs={{min_new_tokens: {ANSWER}}}"]
        print("\n" + json.dumps(measure(options.one, options.device, words)))
        return
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        (link_smollm2 if options.smollm2 else make_place)(place)
        results = []
        for name in options.only:
            results.append(in_a_process(name, place, options.device, is_real=options.smollm2))
            print(as_lines(results)[-1], file=sys.stderr, flush=True)
    print("\n".join(as_lines(results)))
    if options.json:
        print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
