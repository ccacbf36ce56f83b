"""What it costs to read JSON Lines: ours against `datasets.load_dataset("json")`, in turn, each in its own process.

    PYTHONPATH=. python -m scripts.bench.read_jsonl [--mb 200] [--pairs 5]

CPU seconds and memory are those of the reading alone, imports left out: CPU by the process's clock, memory as the
largest resident size beyond that before the reading. Rows of both sides are compared by a hash of every column.
`check` is the look that `rlhf check` and the start of a training take before: columns, kinds, first rows, the verdict.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from scripts.bench.measures import Measure, of_pairs, write

_TEXT = "yes no maybe because therefore the answer is 4 7 12 polite \\frac{1}{2} Straße"


def write_rows(file: Path, num_bytes: int) -> int:
    """Write rows of prompt, completion, answer, a truth value, a number and an integer; returns how many."""
    chance = random.Random(0)
    written = count = 0
    with file.open("w") as stream:
        while written < num_bytes:
            said = " ".join(chance.choices(_TEXT.split(), k=chance.randint(3, 120)))
            row = {"prompt": f"Question {count // 8}: what is {count % 17} plus 4?", "completion": said}
            line = json.dumps({**row, "answer": str(count % 9), "good": count % 3 == 0, "x": count / 7, "n": count})
            written += stream.write(line + "\n")
            count += 1
    return count


def read(how: str, file: str) -> dict[str, object]:
    """Read the file in this process and return what it took."""
    import datasets
    import pyarrow.json  # noqa: F401  both sides need it, so neither pays for it

    from rlhf_cli.data.loading import load_split
    from rlhf_cli.data.peeking import peek
    from rlhf_cli.data.source import DataSource

    datasets.disable_progress_bars()
    before_mb, began_s = _peak_mb(), time.process_time()
    if how == "check":
        num_rows, rows = peek(DataSource(path=file)).num_rows, None
    elif how == "ours":
        rows = load_split([DataSource(path=file)], seed=0)
        num_rows = len(rows)
    else:
        rows = datasets.load_dataset("json", data_files=file, split="train")
        num_rows = len(rows)
    took = {"cpu_s": time.process_time() - began_s, "peak_mb": _peak_mb() - before_mb, "num_rows": num_rows}
    seen = hashlib.sha256()
    for batch in rows.with_format("arrow").iter(10_000) if rows is not None else ():
        for column in batch.column_names:
            seen.update(repr(batch.column(column).to_pylist()).encode())
    return {**took, "seen": seen.hexdigest()}


def _peak_mb() -> float:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def main() -> None:
    """Write the rows, read them in turn, print what it took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, default=200)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--read", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read:
        print(json.dumps(read(*options.read)))
        return
    took: dict[str, list[dict[str, float]]] = {"ours": [], "datasets": [], "check": []}
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "rows.jsonl"
        num_rows = write_rows(file, options.mb << 20)
        for pair in range(options.pairs):
            for how, of_way in took.items():
                environment = {**os.environ, "HF_DATASETS_CACHE": f"{place}/cache-{how}-{pair}"}
                command = [sys.executable, "-m", "scripts.bench.read_jsonl", "--read", how, str(file)]
                done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
                of_way.append(json.loads(done.stdout.splitlines()[-1]))
    same = {one["seen"] for how in ("ours", "datasets") for one in took[how]}
    print(f"{num_rows} rows, {options.mb} MB, {options.pairs} turns; the same rows on both sides: {len(same) == 1}")
    print(f"{'':<12}{'ours':>10}{'datasets':>10}{'ratio':>8}{'min':>8}{'max':>8}{'check':>10}")
    measures: list[Measure] = []
    for figure in ("cpu_s", "peak_mb"):
        ours, theirs, check = ([one[figure] for one in took[how]] for how in ("ours", "datasets", "check"))
        ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
        middle = [statistics.median(values) for values in (ours, theirs, ratios)]
        print(f"{figure:<12}{middle[0]:>10.2f}{middle[1]:>10.2f}{middle[2]:>8.2f}", end="")
        print(f"{min(ratios):>8.2f}{max(ratios):>8.2f}{statistics.median(check):>10.2f}")
        pairs = list(zip(ours, theirs, strict=True))
        if figure == "cpu_s":
            measures.append(of_pairs(f"JSONL, {options.mb} MB: CPU", "time", "CPU s", pairs, 1.5))
        else:
            measures.append(of_pairs(f"JSONL, {options.mb} MB: memory", "memory", "MB", pairs, 0.5))
    if options.json:
        write(options.json, measures)


if __name__ == "__main__":
    main()
