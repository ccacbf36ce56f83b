"""Find out why a multi-rank run failed: which rank failed first, why, and what to do."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from rlhf_cli.errors import EXIT_CRASH, EXIT_PREEMPTED, RunError
from rlhf_cli.launch.ranks import Ended
from rlhf_cli.runs.pulse import pulses
from rlhf_cli.runs.run_folder import RunFolder, read_json
from rlhf_cli.runs.running_reward import rewards_at_the_end

_OF_SIGNALS = {
    signal.SIGKILL: "most likely out of memory: the kernel kills without a word (`dmesg | tail` says so)",
    signal.SIGSEGV: "it crashed in compiled code",
    signal.SIGBUS: "it crashed in compiled code, or a disk or /dev/shm is full",
    signal.SIGABRT: "a library gave up; log.txt holds its last words",
}


@dataclass(frozen=True)
class RankFailure:
    """Why one rank failed, as written to its failure file.

    `time` is in seconds since the epoch. `traceback` is empty if there is none. `host` is None if all ranks are on one
    machine.
    """

    rank: int
    time: float
    message: str
    traceback: str = ""
    exit_code: int = EXIT_CRASH
    is_by_guard: bool = False
    host: str | None = None


def first_failure(folder: RunFolder, ended: Sequence[Ended]) -> RankFailure | None:
    """Return the failure that caused the others, or None if no rank failed."""
    return min(failures(folder, ended), key=attrgetter("time"), default=None)


def failures(folder: RunFolder, ended: Sequence[Ended], *, log: Path | None = None) -> list[RankFailure]:
    """Return the recorded failures of all ranks, and how the ranks in `ended` without a record ended.

    `log` is the log of the latter, None for the run's own. A recorded failure counts from when it was raised, an
    unrecorded one from when the rank was last seen alive: other ranks notice its absence, and record that, before this
    process looks again.
    """
    told = {failure.rank: failure for failure in _told(folder)}
    silent = [
        RankFailure(one.rank, one.at, _how(one, folder, log or folder.log))
        for one in ended
        if one.code not in (0, EXIT_PREEMPTED) and one.rank not in told
    ]
    return [*told.values(), *silent]


def way_on(folder: RunFolder) -> str:
    """Return what remains of a failed run: its last checkpoint, how old it is, and the resume command."""
    checkpoint = folder.last_checkpoint()
    if checkpoint is None:
        return "no checkpoint was saved"
    age = _age(time.time() - checkpoint.stat().st_mtime)
    return f"last good checkpoint: {checkpoint.name}, {age} old; `rlhf resume {os.path.relpath(folder.path)}`"


def failure_file(folder: RunFolder, rank: int | str) -> Path:
    """Return the file in which a rank records why it failed; rank `*` gives the pattern for all."""
    return folder.path / f"failure-rank{rank}.json"


def _told(folder: RunFolder) -> list[RankFailure]:
    """Return the recorded failures, skipping records that a full disk cut off."""
    found = []
    for file in folder.path.glob(failure_file(folder, "*").name):
        with contextlib.suppress(RunError, ValidationError):
            found.append(_failure().validate_python(read_json(file)))
    return found


@cache
def _failure() -> TypeAdapter[RankFailure]:
    return TypeAdapter(RankFailure)


def _how(ended: Ended, folder: RunFolder, log: Path) -> str:
    reward = rewards_at_the_end(folder.path).get(ended.rank)
    beat = pulses(folder.path).get(ended.rank)
    during = f" while reward {reward!r} ran" if reward else f" during {beat.phase}" if beat else ""
    if ended.code >= 0:
        return f"ended with code {ended.code}{during} and did not say why; see {log}"
    number = -ended.code
    known = next((text for one, text in _OF_SIGNALS.items() if one == number), None)
    return f"was killed by signal {number} ({signal.Signals(number).name}){during}" + (f", {known}" if known else "")


def _age(seconds: float) -> str:
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
