"""Keep the batches on which a reward failed, so that `rlhf score` fails on them again without training."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from rlhf_cli.runs.run_folder import RunFolder, write_rows
from rlhf_cli.text.regular_files import lines_of, parse_json


def keep_batch(run: RunFolder, name: str, rows: Sequence[Mapping[str, object]]) -> str:
    """Write rows to `failures/NAME.jsonl`, without known secrets, and return the command that scores them again."""
    file = run.path / "failures" / f"{name}.jsonl"
    file.parent.mkdir(exist_ok=True)
    write_rows(file, rows)
    return _replay_command(run, file)


def kept_batches(run: RunFolder) -> dict[str, str]:
    """Return command -> reward and error, one per kept batch, oldest first."""
    files = sorted((run.path / "failures").glob("*.jsonl"), key=lambda file: (file.stat().st_mtime_ns, file.name))
    return {_replay_command(run, file): file.stem for file in files}


def failed_rows(run: RunFolder) -> dict[str, int]:
    """Return reward -> number of rows it failed on without ending the run, from reward_errors.jsonl."""
    counts: Counter[str] = Counter()
    with suppress(OSError):
        for line in lines_of(run.reward_errors):
            with suppress(ValueError, TypeError, KeyError):  # a line cut off by a full disk
                counts[str(parse_json(line)["reward"])] += 1  # type: ignore[index]
    return dict(counts)


def _replay_command(run: RunFolder, file: Path) -> str:
    shown = os.path.join(run.shown, os.path.relpath(file, run.path))
    return f"rlhf score {shlex.quote(run.shown)} --completions {shlex.quote(shown)}"
