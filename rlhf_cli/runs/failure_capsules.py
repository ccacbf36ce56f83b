"""Keeps a reward's failed batch in the run folder, so that `rlhf score` can fail in the same way without training.

A capsule is two files of `RUN/failures/`: NAME.jsonl, the rows that the function was given, in the form that
`rlhf score --completions` reads, and NAME.json, what is known of the failure. Both are text, without secrets.
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
from rlhf_cli.redaction import redacted_tree
from rlhf_cli.runs.run_folder import RunFolder, read_json, write_json, write_text

_FORMAT = "rlhf failure capsule 1"


@dataclass(frozen=True)
class Capsule:
    """Says which reward failed and how.

    `kind` is the error's class, `timeout` or `nonsense`; `row` is the line of NAME.jsonl that is to blame, from 0, and
    `batch_row` its place in the batch of `rank`; None where no row is known. `step`, `max_steps` and `epoch` are the
    trainer's at that moment. `scored_by` is the function or reward model with its `args`. `timeout_s` bounded the call,
    None for no limit. `left_out_rows` of the batch were too large to keep; `left_out_columns` hold what no JSON does.
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
    left_out_rows: int = 0
    left_out_columns: tuple[str, ...] = ()


def failures_folder(run: RunFolder) -> Path:
    """Return where the capsules of a run lie; nothing is there while no reward has failed."""
    return run.path / "failures"


def as_lines(rows: Sequence[Mapping[str, object]]) -> str:
    """Return rows as JSON, one a line, without the values that are known to be secrets."""
    return "".join(json.dumps(redacted_tree(dict(row), values_only=True), ensure_ascii=False) + "\n" for row in rows)


def write_capsule(run: RunFolder, name: str, capsule: Capsule, lines: str) -> Path:
    """Write both files of a capsule and return that of the rows. Where the name is taken it gets a number.

    The description comes last: a capsule without one is none.
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
    """Return the rows of a failure where their description, which lies beside them, was named; else the file itself."""
    rows = file.with_suffix(".jsonl")
    return rows if file.suffix == ".json" and read_capsule(rows) is not None else file


def read_capsule(file: Path) -> Capsule | None:
    """Return what is known of the failure whose rows are in `file`, None for a file that is no capsule's.

    Raises RunError for a description that cannot be read.
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
    """Return the capsules of a run by their files of rows, in the order they were written."""
    found = sorted(failures_folder(run).glob("*.jsonl"), key=lambda file: (file.stat().st_mtime_ns, file.name))
    read = {file: read_capsule(file) for file in found}
    return {file: capsule for file, capsule in read.items() if capsule is not None}


def failed_rows(run: RunFolder) -> dict[str, int]:
    """Return reward -> rows that it failed on while the run went on, by reward_errors.jsonl."""
    counts: Counter[str] = Counter()
    with suppress(FileNotFoundError), run.reward_errors.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            with suppress(ValueError, TypeError, KeyError):  # a line that a full disk has cut
                counts[str(json.loads(line)["reward"])] += 1
    return dict(counts)


def replay_command(run: RunFolder, file: Path) -> str:
    """Return what to type to see a failure again."""
    shown = os.path.join(run.shown, os.path.relpath(file, run.path))
    return f"rlhf score {shlex.quote(run.shown)} --completions {shlex.quote(shown)}"


def _description(file: Path) -> Path:
    return file.with_suffix(".json")
