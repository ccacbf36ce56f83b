"""Break one run repeatedly until it finishes, and record what happened."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_cli.errors import RunError
from rlhf_cli.runs.checkpoint_folders import newest_whole
from rlhf_cli.runs.metrics_file import read_metrics
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_status import read_status
from scripts.chaos import small_experiment
from scripts.chaos.commands import hit, started, typed, wait_for_moment
from scripts.chaos.first_step import with_first_step
from scripts.chaos.outcomes import Blow, Broken, Ended, Result, result_of
from scripts.chaos.strikes import Case, Strike


@dataclass(frozen=True)
class Reference:
    """An undisturbed run: its result, its duration and the usual duration of a save, in seconds."""

    result: Result
    duration_s: float
    save_s: float


def refer(case: Case, place: Path, name: str) -> Reference:
    """Run a case undisturbed. Raise RuntimeError if it does not finish or never saves."""
    folder = RunFolder(small_experiment.folder(case, name, place))
    saves: list[float] = []
    began = None
    words = small_experiment.words(case, name, "none", place)
    with started(words, place, place / f"{case.name}-{name}.txt") as command:
        while command.runs():
            is_saving = any(folder.checkpoints.glob("tmp-*"))
            if is_saving and began is None:
                began = time.monotonic()
            elif not is_saving and began is not None:
                saves.append(time.monotonic() - began)
                began = None
            time.sleep(0.005)
        duration_s = time.monotonic() - command.began
    if command.ended is None or command.ended.code != 0 or not saves:
        raise RuntimeError(f"{case.name} does not train: {command.ended}")
    return Reference(result_of(folder), duration_s, sorted(saves)[len(saves) // 2])


def break_run(
    number: int, case: Case, strikes: Sequence[Strike], reference: Reference, place: Path, *, track: str, seed: int
) -> Broken:
    """Start a run, strike it, resume it and strike again until a strike finds no process or all are used; then finish
    it.
    """
    name = f"{number}-{strikes[0].signal.name.lower()}"
    folder = RunFolder(small_experiment.folder(case, name, place))
    words = small_experiment.words(case, name, track, place)
    blows: list[Blow] = []
    last = None
    for strike in strikes:
        seen = _struck(strike, folder, _next_command(folder, words), reference, place)
        if isinstance(seen, Ended):
            last = seen
            break
        blows.append(seen)
    if last is None:
        with with_first_step(folder) as steps:
            command = _next_command(folder, words)
            last = steps.of(typed(command, place, text_file(place, folder, "last")), command)
    return Broken(number, seed, case.name, track, tuple(blows), last, result_of(folder), reference.result)


def _next_command(folder: RunFolder, words: list[str]) -> list[str]:
    """Return the command that resumes the run, or the first command again if there is no run yet."""
    return ["resume", str(folder.path)] if folder.config.is_file() else [*words, "run.resume=auto"]


def _struck(strike: Strike, folder: RunFolder, words: list[str], reference: Reference, place: Path) -> Blow | Ended:
    """Run the command and strike it; return the blow, or how the command ended if it ended before."""
    times = {"duration_s": reference.duration_s, "save_s": reference.save_s}
    said = text_file(place, folder, "said")
    with with_first_step(folder) as steps, started(words, place, said) as command:
        is_due = wait_for_moment(command, strike, folder.checkpoints, **times)
        at_s = time.monotonic() - command.began
        victim = hit(command, strike) if is_due else ""
    assert command.ended is not None
    ended = steps.of(command.ended, words)
    if ended.code == 0:
        return ended
    seen = _seen(folder)
    later = text_file(place, folder, "later")
    verbs = ["status"] if seen["state"] else []
    verbs += ["compare"] if seen["state"] and seen["step"] else []  # compare refuses a run without log events
    readers = {verb: typed([verb, str(folder.path)], place, later) for verb in verbs}
    return Blow(signal=strike.signal.name, victim=victim, at_s=round(at_s, 3), ended=ended, readers=readers, **seen)


def text_file(place: Path, folder: RunFolder, what: str) -> Path:
    """Return the file for the output of a training in `folder`; each training overwrites it."""
    return place / f"{folder.path.parent.parent.name}-{folder.path.name}-{what}.txt"


def _seen(folder: RunFolder) -> dict[str, Any]:
    """Return the readable facts of a broken run: its state, step and checkpoint, and which of them could not be
    read.
    """
    seen: dict[str, Any] = {"state": None, "unreadable": None, "step": 0, "checkpoint": 0, "was_saving": False}
    if not folder.config.is_file():
        return seen
    try:
        seen["state"] = read_status(folder).state
        seen["step"] = max((int(str(event["step"])) for event in read_metrics(folder.metrics)), default=0)
    except RunError as error:
        seen["unreadable"] = str(error)
    newest, _ = newest_whole(folder.checkpoints)
    seen["checkpoint"] = int(newest.name.rpartition("-")[2]) if newest else 0
    seen["was_saving"] = any(folder.checkpoints.glob("tmp-*"))
    return seen
