"""Start `rlhf` commands as a user does, in their own session, and strike their processes."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from scripts.chaos.outcomes import Ended
from scripts.chaos.process_tree import below, end, is_rank, left_behind
from scripts.chaos.strikes import Strike

TIMEOUT_S = 300.0
"""The longest time that a command may take."""
_PATIENCE_S = 10.0
"""Seconds that processes may need to exit after their command."""
_LOOK_S = 0.001


@dataclass
class Command:
    """A running command; `ended` is set when it has ended."""

    process: subprocess.Popen[bytes]
    began: float
    ended: Ended | None = None

    def runs(self) -> bool:
        """Return whether it is still running."""
        return self.process.poll() is None


@contextmanager
def started(words: list[str], place: Path, said: Path) -> Iterator[Command]:
    """Run `rlhf WORDS` in `place` with its output in the file `said`; on exit, wait for it and end all its processes.

    A command that takes too long is killed with all its processes; its exit code is then that of SIGKILL.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    with said.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "rlhf_cli", *words],
            cwd=place,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    command = Command(process, time.monotonic())
    try:
        yield command
        process.wait(TIMEOUT_S)
    except subprocess.TimeoutExpired:
        end(below(process.pid))
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        orphans, waited_s = left_behind(_PATIENCE_S)
        end(orphans)
        lines = tuple(f"{orphan.pid}: {orphan.command[:160]}" for orphan in orphans)
        command.ended = Ended(process.returncode, said.read_text(errors="replace"), lines, waited_s)


def typed(words: list[str], place: Path, said: Path) -> Ended:
    """Run `rlhf WORDS` until it ends."""
    with started(words, place, said) as command:
        pass
    assert command.ended is not None
    return command.ended


def wait_for_moment(command: Command, strike: Strike, checkpoints: Path, *, duration_s: float, save_s: float) -> bool:
    """Wait for the moment of the strike; return whether the command is still running. `save_s` is the usual duration of
    a save.
    """
    while command.runs() and time.monotonic() < command.began + strike.at * duration_s:
        time.sleep(_LOOK_S)
    if strike.in_save:
        # A save that has already begun does not count, because it may be about to end.
        known = _staged(checkpoints)
        while command.runs() and _staged(checkpoints) <= known:
            time.sleep(_LOOK_S)
        time.sleep(strike.into_save * save_s)
    return command.runs()


def hit(command: Command, strike: Strike) -> str:
    """Send the strike's signal to its victim and return it; without ranks the victim is the command."""
    ranks = [process for process in below(command.process.pid) if is_rank(process)]
    with contextlib.suppress(ProcessLookupError):
        if strike.victim == "rank" and len(ranks) > strike.rank:
            os.kill(ranks[strike.rank].pid, strike.signal)
            return "rank"
        if strike.victim == "group":
            for leader in [command.process.pid, *(rank.pid for rank in ranks)]:
                os.killpg(leader, strike.signal)
            return "group"
        os.kill(command.process.pid, strike.signal)
    return "command"


def _staged(checkpoints: Path) -> set[str]:
    with contextlib.suppress(FileNotFoundError):
        return {entry.name for entry in os.scandir(checkpoints) if entry.name.startswith("tmp-")}
    return set()
