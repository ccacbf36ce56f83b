"""Measure the time from Enter to the first optimizer step: `rlhf train` and `trl grpo` in turn, in CPU seconds.

    python -m scripts.bench.first_step --pairs 5
    python -m scripts.bench.first_step --pairs 5 --against plain --steps 60 [--trainer rloo]

Both sides have the same model, rows, reward (marked_steps.py) and settings. `--against plain` compares with a script
that calls TRL's trainer. Its measure is a step between the first and the last: with this tiny model a step is mostly
Python, which is what a GPU would wait for.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from rlhf_cli.data.worlds import generate
from rlhf_cli.models.tiny import EMBEDDED
from scripts.bench.measures import of_pairs, table, write

HERE = Path(__file__).parent
MODEL = EMBEDDED / "tiny"
SETTINGS = {
    "per_device_train_batch_size": "64",
    "num_generations": "8",
    "max_completion_length": "16",
    "learning_rate": "1e-3",
    "gradient_checkpointing": "false",
    "logging_steps": "1",
    "save_steps": "100",
    "save_total_limit": "2",
}
"""Settings of both sides."""

Marks = dict[str, float]
"""Name -> seconds, of one command."""


def main() -> None:
    """Run the pairs and print medians, ratios and their range."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--against", choices=["trl", "plain"], default="trl")
    parser.add_argument("--trainer", choices=["grpo", "rloo"], default="grpo")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "marked_steps.py").write_text((HERE / "marked_steps.py").read_text())
        (place / "rows").mkdir()
        rows = generate("toy_sums", {"num_rows": 2000, "max_value": 20}, seed=0)
        (place / "rows" / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        on_trl = options.against == "trl"
        others = (theirs if on_trl else plainly)(options.trainer, options.steps)
        pairs = []
        for turn in range(-1, options.pairs):
            a = measured(ours(options.trainer, options.steps, f"run{turn}"), place, options.steps)
            b = measured([*others, f"out{turn}"], place, options.steps)
            if turn >= 0:  # the first turn warms up
                pairs.append((a, b))
                print(f"pair {turn}: " + "  ".join(f"{name} {a[name]:.2f}/{b[name]:.2f}" for name in a), flush=True)
    measures = []
    for figure in pairs[0][0]:
        both = [(a[figure], b[figure]) for a, b in pairs]
        is_measured = figure == ("to the first step" if options.against == "trl" else "a step")
        goal = None if not is_measured else 0.65 if options.against == "trl" else 1.0
        name = f"{options.trainer}: {figure}, against {options.against}"
        measures.append(of_pairs(name, "time" if is_measured else "note", "CPU s", both, goal))
    if options.json:
        write(options.json, [measure for measure in measures if measure.kind == "time"])
    print(table(measures))


def ours(trainer: str, steps: int, name: str) -> list[str]:
    """Return the command of our side."""
    said = [f"trainer.args.{key}={value}" for key, value in SETTINGS.items()]
    rewards = ["~rewards.format", "~rewards.brevity", "rewards.correct.fn=./marked_steps.py:correct"]
    words = ["+exp=quickstart", f"trainer={trainer}", "data=file", "data.path=rows/train.jsonl", *rewards, *said]
    words += [f"trainer.args.max_steps={steps}", "track=none", "launch=cpu", f"run.name={name}"]
    return [sys.executable, "-m", "rlhf_cli", "train", *words]


def theirs(trainer: str, steps: int) -> list[str]:
    """Return the command of TRL's own launcher, without the output folder."""
    said = [word for key, value in SETTINGS.items() for word in (f"--{key}", value)]
    said += ["--log_completions", "true", "--num_completions_to_print", "0", "--max_steps", str(steps)]
    said += ["--report_to", "none", "--use_cpu", "true", "--bf16", "false", "--seed", "0"]
    trl = [sys.executable, "-m", "trl.cli.main"]
    words = [trainer, "--model_name_or_path", str(MODEL), "--dataset_name", "rows"]
    return [*trl, *words, "--reward_funcs", "marked_steps.correct", *said, "--output_dir"]


def plainly(trainer: str, steps: int) -> list[str]:
    """Return the command of a script that calls TRL's trainer, without the output folder."""
    return [sys.executable, str(HERE / "plain_trl.py"), trainer, str(MODEL), str(steps)]


def measured(command: list[str], place: Path, steps: int) -> Marks:
    """Run a command in a new session and return the seconds to its first step, per step, after its last, and in all."""
    marks = place / "marks.jsonl"
    marks.unlink(missing_ok=True)
    environment = {**os.environ, "MARKS": str(marks), "STEPS": str(steps), "RLHF_CACHE": str(place / "cache")}
    environment |= {
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_DATASETS_CACHE": str(place / "datasets"),
    }
    environment |= {"TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": f"{place}:{os.environ.get('PYTHONPATH', '')}"}
    with (place / "output").open("wb") as output:
        child = subprocess.Popen(
            command, cwd=place, env=environment, stdout=output, stderr=output, start_new_session=True
        )
        _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit((place / "output").read_text() + f"\n{' '.join(command)} ended with {child.returncode}")
    cpu_s = usage.ru_utime + usage.ru_stime
    taken = [json.loads(line) for line in marks.read_text().splitlines()]
    first, last = taken[0], taken[-1]
    between = {"a step": (last["process_s"] - first["process_s"]) / (steps - 1)} if steps > 1 else {}
    return {
        "to the first step": first["cpu_s"],
        **between,
        "after the last step": cpu_s - last["cpu_s"],
        "in all": cpu_s,
    }


if __name__ == "__main__":
    main()
