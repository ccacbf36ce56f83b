"""Measure `rlhf score` as rows grow: CPU seconds and memory of the whole command, with three cheap rewards.

    python -m scripts.bench.score_rows [--rows 100000] [--turns 3]

numeric_answer, format_tags and length_ramp in words, with a label, as a table and as JSON, for all rows and a quarter
of them. The cost of a single row, which is startup and imports, is subtracted.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
from pathlib import Path

from scripts.bench.measures import Cost, Measure, cost_of, table, write

_TEXT = "yes no paris lyon tokyo maybe because therefore the answer is 4 7 12 polite thanks"
_REWARDS = ["+exp=gsm8k_grpo", "rewards.brevity.args.unit=words", "+reward@rewards.format=format_tags"]
_GOALS = {"time": 10.0, "memory": 500.0}
"""Seconds and MB for 100,000 rows."""


def write_rows(file: Path, count: int) -> None:
    """Write rows with a question, an answer of up to sixty words, the right answer and a label."""
    chance = random.Random(0)
    with file.open("w") as stream:
        for row in range(count):
            text = " ".join(chance.choices(_TEXT.split(), k=chance.randint(3, 60))) + f" <answer>{row % 5}</answer>"
            fields = {"prompt": f"Question {row // 8}: what is {row % 17} plus 4?", "completion": text}
            stream.write(json.dumps({**fields, "answer": str(row % 3), "good": row % 3 == 0}) + "\n")


def main() -> None:
    """Write the rows, score them in turn, print the costs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    counts = (1, options.rows // 4, options.rows)
    costs: dict[tuple[int, bool], list[Cost]] = {(count, as_json): [] for count in counts for as_json in (False, True)}
    with tempfile.TemporaryDirectory() as place:
        for count in counts:
            write_rows(Path(place) / f"{count}.jsonl", count)
        for _ in range(options.turns):
            for (count, as_json), turns in costs.items():
                words = ["score", *_REWARDS, "--completions", f"{count}.jsonl", "--label", "good"]
                command = [sys.executable, "-m", "rlhf_cli", *words, *(["--json"] if as_json else [])]
                turns.append(cost_of(command, Path(place)))
    measures: list[Measure] = []
    for (count, as_json), turns in costs.items():
        if count == 1:
            continue
        name = f"score, {count} rows{', --json' if as_json else ''}"
        for kind, figure, unit in (("time", "cpu_s", "CPU s"), ("memory", "peak_mb", "MB")):
            total, startup = (
                statistics.median(getattr(cost, figure) for cost in some) for some in (turns, costs[1, as_json])
            )
            goal = _GOALS[kind] if count == 100_000 else None
            measures.append(Measure(f"{name}: {unit}", kind, total - startup, goal, pairs=options.turns))  # type: ignore[arg-type]
    if options.json:
        write(options.json, [measure for measure in measures if f" {options.rows} rows" in measure.name])
    print(table(measures))


if __name__ == "__main__":
    main()
