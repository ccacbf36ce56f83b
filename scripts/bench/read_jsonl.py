"""Measure reading JSON Lines: ours and `datasets.load_dataset("json")` in turn, each in its own process.

    python -m scripts.bench.read_jsonl [--mb 200] [--pairs 5]

CPU seconds and memory without imports; memory is the growth of the largest resident size. Rows of both sides are
compared by a hash of every column.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from scripts.bench.measures import Kind, Measure, of_pairs, table, write

_TEXT = "yes no maybe because therefore the answer is 4 7 12 polite \\frac{1}{2} Straße"


def write_rows(file: Path, num_bytes: int) -> int:
    """Write rows of prompt, completion, answer, a boolean, a float and an integer; return their number."""
    chance = random.Random(0)
    written = count = 0
    with file.open("w") as stream:
        while written < num_bytes:
            text = " ".join(chance.choices(_TEXT.split(), k=chance.randint(3, 120)))
            row = {"prompt": f"Question {count // 8}: what is {count % 17} plus 4?", "completion": text}
            line = json.dumps({**row, "answer": str(count % 9), "good": count % 3 == 0, "x": count / 7, "n": count})
            written += stream.write(line + "\n")
            count += 1
    return count


def read(how: str, file: str) -> dict[str, object]:
    """Read the file in this process and return the costs."""
    import datasets
    import pyarrow.json  # noqa: F401  both sides need it, so neither is charged for it

    from rlhf_cli.data.loading import load_split
    from rlhf_cli.data.source import DataSource

    datasets.disable_progress_bars()
    before_mb, began_s = _peak_mb(), time.process_time()
    if how == "ours":
        rows = load_split([DataSource(path=file)], seed=0)
    else:
        rows = datasets.load_dataset("json", data_files=file, split="train")
    took = {"cpu_s": time.process_time() - began_s, "peak_mb": _peak_mb() - before_mb}
    seen = hashlib.sha256()
    for batch in rows.with_format("arrow").iter(10_000):
        for column in batch.column_names:
            seen.update(repr(batch.column(column).to_pylist()).encode())
    return {**took, "seen": seen.hexdigest()}


def _peak_mb() -> float:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def main() -> None:
    """Write the rows, read them in turn, print the costs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, default=200)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--read", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read:
        print(json.dumps(read(*options.read)))
        return
    took: dict[str, list[dict[str, float]]] = {"ours": [], "datasets": []}
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "rows.jsonl"
        num_rows = write_rows(file, options.mb << 20)
        for pair in range(options.pairs):
            for how, turns in took.items():
                environment = {**os.environ, "HF_DATASETS_CACHE": f"{place}/cache-{how}-{pair}"}
                command = [sys.executable, "-m", "scripts.bench.read_jsonl", "--read", how, str(file)]
                done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
                turns.append(json.loads(done.stdout.splitlines()[-1]))
    hashes = {turn["seen"] for how in ("ours", "datasets") for turn in took[how]}
    print(f"{num_rows} rows, {options.mb} MB, {options.pairs} turns; the same rows on both sides: {len(hashes) == 1}")
    measures: list[Measure] = []
    kinds: tuple[tuple[Kind, str, str, str, float], ...] = (
        ("time", "cpu_s", "CPU s", "CPU", 1.5),
        ("memory", "peak_mb", "MB", "memory", 0.5),
    )
    for kind, figure, unit, name, goal in kinds:
        pairs = [(ours[figure], theirs[figure]) for ours, theirs in zip(took["ours"], took["datasets"], strict=True)]
        measures.append(of_pairs(f"JSONL, {options.mb} MB: {name}", kind, unit, pairs, goal))
    print(table(measures))
    if options.json:
        write(options.json, measures)


if __name__ == "__main__":
    main()
