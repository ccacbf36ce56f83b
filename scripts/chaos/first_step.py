"""Find when a resuming command made its first new step, from the log of the run."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from rlhf_cli.errors import RunError
from rlhf_cli.runs.metrics_file import read_metrics
from rlhf_cli.runs.run_folder import RunFolder
from scripts.chaos.outcomes import Ended

_LOOK_S = 0.02
_FROM = re.compile(r"^(?:going on|resuming) from checkpoint-(\d+)", re.MULTILINE)
_BEGINS = "starting at step 0"


@dataclass
class SeenSteps:
    """Seconds since `began` -> the last logged step."""

    began: float = field(default_factory=time.monotonic)
    steps: list[tuple[float, int]] = field(default_factory=list)

    def of(self, ended: Ended, words: list[str]) -> Ended:
        """Add the step that the command resumed from, and its time to the first step.

        A command that starts a run does not print that step.
        """
        start = went_on_from(ended.said)
        if start is None and words[0] == "train" and self.steps:
            start = 0
        first = next((at for at, step in self.steps if start is not None and step > start), None)
        return replace(ended, went_on_from=start, first_step_s=None if first is None else round(first, 3))


@contextmanager
def with_first_step(folder: RunFolder) -> Iterator[SeenSteps]:
    """Watch the log while the block types the command and runs it.

    Before a command resumes, it rewrites the metrics without those after its checkpoint; until then they are old.
    """
    seen = SeenSteps()
    is_over = threading.Event()
    before = _identity(folder.metrics)

    def watch() -> None:
        while not is_over.wait(_LOOK_S):
            if _identity(folder.metrics) in (None, before):
                continue
            with contextlib.suppress(RunError):
                step = max((int(str(event["step"])) for event in read_metrics(folder.metrics)), default=0)
                if not seen.steps or seen.steps[-1][1] != step:
                    seen.steps.append((time.monotonic() - seen.began, step))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        is_over.set()
        thread.join()


def went_on_from(said: str) -> int | None:
    """Return the step that a command resumed from according to its output, or None."""
    found = _FROM.search(said)
    return int(found[1]) if found else 0 if _BEGINS in said else None


def _identity(file: Path) -> int | None:
    with contextlib.suppress(FileNotFoundError):
        return file.stat().st_ino
    return None
