"""Keep a reward's failed batch in the run folder, so that `rlhf score` can reproduce the failure without training.

A capsule is two files in `RUN/failures/`: NAME.jsonl with the rows passed to the function, in the format of `rlhf score
--completions`, and NAME.json with facts about the failure. Both are text with secrets removed.
"""

from __future__ import annotations

import json
import os
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from rlhf_cli.errors import RunError
from rlhf_cli.runs.run_folder import RunFolder, read_json, write_json, write_text
from rlhf_cli.text.redaction import redacted_tree

_FORMAT = "rlhf failure capsule 1"


@dataclass(frozen=True)
class Capsule:
    """Which reward failed, and how.

    `kind` is the error's class, `timeout` or `nonsense`. `row` is the failed line of NAME.jsonl, from 0, and
    `batch_row` is its index in the batch of `rank`; both are None if unknown. `step`, `max_steps` and `epoch` are the
    trainer's at that moment. `scored_by` is the function or reward model with its `args`. `timeout_s` is the time limit
    of the call, None for no limit. `left_out_columns` are not JSON serializable.
    """

    reward: str
    kind: str
    error: str
    traceback: str
    row: int | None
    batch_row: int | None
    rank: int
    step: int
    max_steps: int
    epoch: float | None
    scored_by: str
    args: Mapping[str, object]
    on_error: str | float
    timeout_s: float | None
    left_out_columns: tuple[str, ...] = ()


def failures_folder(run: RunFolder) -> Path:
    """Return the folder of a run's capsules, which exists once a reward has failed."""
    return run.path / "failures"


def as_lines(rows: Sequence[Mapping[str, object]]) -> str:
    """Return rows as JSON lines, with known secrets removed."""
    return "".join(json.dumps(redacted_tree(dict(row), values_only=True), ensure_ascii=False) + "\n" for row in rows)


def write_capsule(run: RunFolder, name: str, capsule: Capsule, lines: str) -> Path:
    """Write both files of a capsule and return the file of rows. A name that is taken gets a number.

    The description is written last: rows without it are not a capsule.
    """
    folder = failures_folder(run)
    folder.mkdir(exist_ok=True)
    file, number = folder / f"{name}.jsonl", 1
    while file.exists():
        number += 1
        file = folder / f"{name}-{number}.jsonl"
    write_text(file, lines)
    write_json(_description(file), {"format": _FORMAT, **asdict(capsule), "replay": replay_command(run, file)})
    return file


def rows_of(file: Path) -> Path:
    """Return the rows file if `file` is the description of a failure beside it, else `file` itself."""
    rows = file.with_suffix(".jsonl")
    return rows if file.suffix == ".json" and read_capsule(rows) is not None else file


def read_capsule(file: Path) -> Capsule | None:
    """Return the description of the failure whose rows are in `file`, or None if it is not a capsule.

    Raises RunError if the description cannot be read.
    """
    if file.suffix != ".jsonl" or not _description(file).is_file():
        return None
    content = read_json(_description(file))
    if content.get("format") != _FORMAT:
        return None
    known = {field.name for field in fields(Capsule)}
    try:
        return Capsule(**{name: value for name, value in content.items() if name in known})  # type: ignore[arg-type]
    except TypeError as error:
        raise RunError("this description of a failure is not whole", where=str(_description(file)), got=error) from None


def capsules_of(run: RunFolder) -> dict[Path, Capsule]:
    """Return the capsules of a run by rows file, oldest first."""
    found = sorted(failures_folder(run).glob("*.jsonl"), key=lambda file: (file.stat().st_mtime_ns, file.name))
    read = {file: read_capsule(file) for file in found}
    return {file: capsule for file, capsule in read.items() if capsule is not None}


def failed_rows(run: RunFolder) -> dict[str, int]:
    """Return reward -> number of rows it failed on without ending the run, from reward_errors.jsonl."""
    counts: Counter[str] = Counter()
    with suppress(FileNotFoundError), run.reward_errors.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            with suppress(ValueError, TypeError, KeyError):  # a line cut off by a full disk
                counts[str(json.loads(line)["reward"])] += 1
    return dict(counts)


def replay_command(run: RunFolder, file: Path) -> str:
    """Return the command that reproduces a failure."""
    shown = os.path.join(run.shown, os.path.relpath(file, run.path))
    return f"rlhf score {shlex.quote(run.shown)} --completions {shlex.quote(shown)}"


def _description(file: Path) -> Path:
    return file.with_suffix(".json")
