"""What we add to any TRL trainer: where it writes.

Every method here calls super() and copies none of its body. tests/trainers/test_contract.py names each seam, so that
a TRL that moves one fails there in a readable place.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class InRunFolder:
    """Puts checkpoints under `checkpoints/` and TRL's printed tables into a log file."""

    table_log: Path | None = None

    def _get_output_dir(self, trial: Any) -> str:
        return str(Path(super()._get_output_dir(trial=trial), "checkpoints"))  # type: ignore[misc]

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        # TRL prints a sample of completions on every log; beside a progress bar that belongs into the log file.
        with _stdout_into(self.table_log):
            super().log(logs, start_time)  # type: ignore[misc]


@contextlib.contextmanager
def _stdout_into(file: Path | None) -> Iterator[None]:
    if file is None:
        yield
        return
    with file.open("a", encoding="utf-8") as stream, contextlib.redirect_stdout(stream):
        yield
