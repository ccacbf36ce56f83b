"""What `rlhf score` costs as rows grow: CPU seconds and memory of the whole command, three rewards that cost little.

    PYTHONPATH=. python -m scripts.bench.score_rows [--rows 100000] [--turns 3]

numeric_answer, format_tags and length_ramp in words, with a label. As a table and as JSON, for the rows, a quarter of
them and a single one: a single row is what starting and importing cost, and a cost that grows with the rows four times
as large for four times as many.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
from pathlib import Path

from scripts.bench.measures import Measure, write
from scripts.bench.pairs import Cost, cost_of

_TEXT = "yes no paris lyon tokyo maybe because therefore the answer is 4 7 12 polite thanks"
_REWARDS = ["+exp=gsm8k_grpo", "rewards.brevity.args.unit=words", "+reward@rewards.format=format_tags"]


def write_rows(file: Path, count: int) -> None:
    """Write rows of a question, an answer of up to sixty words, the right one and whether it is good."""
    chance = random.Random(0)
    with file.open("w") as stream:
        for row in range(count):
            said = " ".join(chance.choices(_TEXT.split(), k=chance.randint(3, 60))) + f" <answer>{row % 5}</answer>"
            of_row = {"prompt": f"Question {row // 8}: what is {row % 17} plus 4?", "completion": said}
            stream.write(json.dumps({**of_row, "answer": str(row % 3), "good": row % 3 == 0}) + "\n")


def main() -> None:
    """Write the rows, score them in turn, print what it took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    counts = (1, options.rows // 4, options.rows)
    took: dict[tuple[int, bool], list[Cost]] = {(count, as_json): [] for count in counts for as_json in (False, True)}
    with tempfile.TemporaryDirectory() as place:
        for count in counts:
            write_rows(Path(place) / f"{count}.jsonl", count)
        for _ in range(options.turns):
            for (count, as_json), costs in took.items():
                words = ["score", *_REWARDS, "--completions", f"{count}.jsonl", "--label", "good"]
                command = [sys.executable, "-m", "rlhf_cli", *words, *(["--json"] if as_json else [])]
                # Into a file: eighty megabytes read here would be counted as the next command's, a fork of this one.
                command = ["sh", "-c", 'exec "$@" > said.txt', "sh", *command]
                costs.append(cost_of(command, cwd=place, environment=dict(os.environ)))
    print(f"{'rows':>8}{'':>8}{'CPU s':>8}{'beyond':>8}{'peak MB':>9}{'beyond':>8}   {options.turns} turns")
    measures: list[Measure] = []
    for (count, as_json), costs in took.items():
        cpu_s, peak_mb = (statistics.median(getattr(cost, figure) for cost in costs) for figure in ("cpu_s", "peak_mb"))
        of_one = took[1, as_json]
        rest_s = cpu_s - statistics.median(cost.cpu_s for cost in of_one)
        rest_mb = peak_mb - statistics.median(cost.peak_mb for cost in of_one)
        print(f"{count:>8}{'JSON' if as_json else 'table':>8}{cpu_s:>8.2f}{rest_s:>8.2f}{peak_mb:>9.0f}{rest_mb:>8.0f}")
        if count == options.rows and options.json:
            name = f"score, {count} rows{', --json' if as_json else ''}"
            limit_s, limit_mb = (10.0, 500.0) if count == 100_000 else (None, None)
            measures.append(Measure(f"{name}: CPU s", "time", rest_s, limit_s, pairs=options.turns))
            measures.append(Measure(f"{name}: MB", "memory", rest_mb, limit_mb, pairs=options.turns))
    if options.json:
        write(options.json, measures)


if __name__ == "__main__":
    main()
