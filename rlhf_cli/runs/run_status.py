"""Read and write status.json, describe a run's state and result, and look over the runs of a folder.

A process that crashes or is killed leaves the state `running`. The next reader replaces it with `killed`.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import cast

from pydantic import TypeAdapter, ValidationError

from rlhf_cli.errors import CTRL_C, RunError
from rlhf_cli.process import ProcessIdentity, this_process
from rlhf_cli.runs.heartbeat import while_running
from rlhf_cli.runs.metrics_file import Event, events_after, read_metrics
from rlhf_cli.runs.run_folder import FIRST_RUN, SWEEP, RunFolder, read_json, run_of, runs_below, unreadable, write_json
from rlhf_cli.text.json_values import JsonTree

ANOTHER_RANK = "another rank got a signal to stop"
_TAIL_BYTES = 1 << 16
_EVENTS = 20  # recent log events that make the pace: a run whose completions grow is now slower than its average
_MOST_TOGETHER = 12  # a folder with more runs is shown one group at a time: too many keys would differ for one table
_MOST_LINKS = 5


class RunState(StrEnum):
    """The state of a run; the last three are those of a sweep's jobs."""

    CREATED = "created"
    QUEUED = "queued"  # by a scheduler, under its job id; no process of it lives yet
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    PREEMPTED = "preempted"
    KILLED = "killed"  # set by a reader: the status is RUNNING, but the process is gone
    UNREADABLE = "unreadable"  # set by a reader of a damaged status.json
    PRUNED = "pruned"  # the search stopped the run, which counts as done
    WAITING = "waiting"  # its process has not begun, nor in STARTING
    STARTING = "starting"


CREATED, QUEUED, RUNNING, FINISHED, FAILED, PREEMPTED, KILLED, UNREADABLE, PRUNED, WAITING, STARTING = RunState
WRITER_LOCK = ".writer.lock"  # a process that writes into a run folder holds a lock on this file (writer_lock.py)
_FINAL = (FINISHED, FAILED, PREEMPTED)


@dataclass(frozen=True)
class Status:
    """The state of one run, as stored in status.json. Unknown values are None."""

    state: RunState
    step: int = 0  # of the optimizer, as `max_steps`
    max_steps: int | None = None
    reason: str | None = None  # why the run ended before its last step; for a finished run the stopping rule
    failing_rank: int | None = None
    last_checkpoint: str | None = None
    warnings: int = 0
    pid: int | None = None  # of the main process, which `host`, `start_ticks` and `boot` identify too
    host: str | None = None
    job_id: str | None = None  # Slurm's, `123` or `123_4`
    start_ticks: int | None = None
    boot: str | None = None
    updated_at: float = 0.0  # in seconds since the epoch

    @property
    def process(self) -> ProcessIdentity | None:
        """Return the main process, or None if unknown."""
        if self.pid is None or self.host is None:
            return None
        return ProcessIdentity(self.pid, self.host, self.start_ticks, self.boot)

    @property
    def stopped_by_rule(self) -> str | None:
        """Return the rule that ended a finished run, with its values; None if it ran to its last step."""
        return self.reason if self.state == FINISHED else None

    @property
    def was_in_words(self) -> str:
        """Return how the earlier part of a resumed run ended, for example `was stopped by Ctrl-C at step 40`."""
        was = describe_state(self.state, self.reason)
        reason = f": {self.reason}" if self.reason and was in (KILLED, PREEMPTED) else ""
        return f"was {was} at step {self.step}{reason}"


_STATUS = TypeAdapter(Status)


def describe_state(state: str, reason: str | None) -> str:
    """Return a state in words; a run stopped by its user is `stopped by Ctrl-C`, not preempted."""
    return f"stopped by {CTRL_C}" if state == PREEMPTED and reason == CTRL_C else state


def read_status(folder: RunFolder, *, take_over: bool = False) -> Status:
    """Return the run's state; record `killed` if its process on this machine is dead. Raise RunError if unreadable.

    `take_over` says that a process on another machine is dead as well.
    """
    try:
        content = read_json(folder.status)
        status = _STATUS.validate_python({"state": CREATED, **content})
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(str(part) for part in problem["loc"])
        raise unreadable(folder.status, f"{place}: {problem['msg']}, got {problem['input']!r}") from None
    process, dead = status.process, (False, None) if take_over else (False,)
    if status.state == RUNNING and (process is None or process.is_alive() in dead):
        reason = f"process {status.pid} ended without a final status{while_running(folder.path)}"
        status = replace(status, state=KILLED, reason=reason)
        _write_killed(folder, status, content)
    return status


def is_of_these_weights(model: Path, time_s: float) -> bool:
    """Return whether an evaluation at `time_s` (epoch) is not older than these weights or, of a copy, its run's end."""
    written_at_s = max((file.stat().st_mtime for file in model.glob("*.safetensors")), default=0.0)
    return time_s >= written_at_s or ((run := run_of(model)) is not None and 0 < read_status(run).updated_at <= time_s)


def command_to_finish(folder: RunFolder, status: Status) -> str:
    """Return the command for a run that has to finish first: resume it, or see when it will, if it trains already."""
    return f"rlhf {'status' if status.state in (RUNNING, QUEUED) else 'resume'} {folder.typed}"


def _write_killed(folder: RunFolder, killed: Status, content: JsonTree) -> None:
    """Record that a run was killed, unless another process works on it or its status is no longer `content`."""
    from filelock import FileLock, Timeout

    with contextlib.suppress(OSError, Timeout, RunError), FileLock(folder.path / WRITER_LOCK, timeout=0):
        if read_json(folder.status) == content:
            write_json(folder.status, asdict(killed))


def set_stop_reason(folder: RunFolder, asked_by: str) -> Status:
    """Record who stopped a run, and return its status; rank 0 only knows that it, or another rank, got a signal."""
    status = read_status(folder)
    reason = status.reason or ""
    seen = next((text for text in (signal.SIGTERM.name, CTRL_C, ANOTHER_RANK) if reason.startswith(text)), None)
    if status.state != PREEMPTED or seen is None:
        return status
    return update_status(folder, reason=asked_by + reason.removeprefix(seen))


def update_status(folder: RunFolder, **changes: object) -> Status:
    """Merge `changes` into status.json; a final state is flushed, so that a power cut does not start the run again."""
    try:
        known = read_json(folder.status)
    except RunError:  # a damaged file must not end the training
        known = {"state": RUNNING, **asdict(this_process())}
    content = {**known, **changes, "updated_at": time.time()}
    status = _STATUS.validate_python(content)
    try:
        write_json(folder.status, asdict(status), durable=status.state in _FINAL)
    except OSError:
        if status.state not in _FINAL or not folder.status.is_file():
            raise
        with contextlib.suppress(OSError), folder.status.open("r+", encoding="utf-8") as stream:
            stream.write(json.dumps(asdict(status), indent=2) + "\n")  # a full disk has no room for a second file
            stream.truncate()
    return status


def preempt(folder: RunFolder, reason: str | None) -> Status:
    """Record that a run was stopped, unless it has finished and only its tracker was closing. Return its status."""
    with contextlib.suppress(RunError):  # a damaged file is replaced
        if (status := read_status(folder)).state == FINISHED:
            return status
    checkpoint = folder.last_checkpoint()  # the signal may have come before its name was recorded
    return update_status(folder, state=PREEMPTED, reason=reason, last_checkpoint=checkpoint and checkpoint.name)


def claim(folder: RunFolder) -> None:
    """Record that the current process now works on the run."""
    begins = {"reason": None, "failing_rank": None, "warnings": 0}
    update_status(folder, state=RUNNING, **asdict(this_process()), job_id=own_job_id(), **begins)


def own_job_id() -> str | None:
    """Return the Slurm id of this process's job, `123` or, in an array, `123_4`; None outside Slurm."""
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else os.environ.get("SLURM_JOB_ID")


def run_result(folder: RunFolder) -> dict[str, object]:
    """Return what became of a run as JSON values: mean `rewards` of its first and last tenth, the last `metrics`."""
    from rlhf_cli.runs.metric_arrays import columns_of, reward_spans

    status, events = Status(state=UNREADABLE), list[Event]()
    with contextlib.suppress(RunError):  # a sweep's other runs are still shown
        status = read_status(folder)
        events = read_metrics(folder.metrics)
    last: dict[str, object] = {}
    for event in events:
        last |= {name: value for name, value in event.items() if value is not None}
    spans, checkpoint = reward_spans(columns_of(events)), folder.last_checkpoint()
    of_status = ("state", "step", "max_steps", "reason", "job_id", "warnings")
    return {
        "run": folder.shown,
        **{name: getattr(status, name) for name in of_status},
        "rewards": {name: {"start": start, "end": end} for name, (start, end) in spans.items()},
        "metrics": last,
        "model": os.path.relpath(folder.model) if folder.model.is_dir() else None,
        "last_checkpoint": os.path.relpath(checkpoint) if checkpoint is not None else None,
    }


def newest_run(root: Path = Path("runs"), *, finished: bool | None = None) -> RunFolder | None:
    """Return the most recently updated run below `root`, or None.

    `finished`: True requires a finished run with a model, False one that can be resumed, if there is any.
    """

    def updated_at(run: RunFolder) -> float:
        return (run.status if run.status.is_file() else run.config).stat().st_mtime

    found = sorted(runs_below(root), key=updated_at, reverse=True)
    for run in found if finished is not None else ():
        with contextlib.suppress(RunError):
            state = read_status(run).state
            if (state == FINISHED and run.model.is_dir()) if finished else state not in (FINISHED, RUNNING, QUEUED):
                return run
    return None if finished else next(iter(found), None)


def with_newest(command: str, more: str = "", *, finished: bool | None = None, all_of_it: bool = False) -> str:
    """Return `rlhf why runs/quickstart/mine`, with the newest run, or how to make a first run; `more` is appended.

    `finished` is that of `newest_run`. `all_of_it` names the experiment's folder with all its runs instead.
    """
    run = newest_run(finished=finished)
    if run is None:
        return f"{FIRST_RUN} && {command} run:quickstart{more}"
    named = os.path.join(*Path(run.shown).parts[:2]) if all_of_it else run.shown
    return f"{command} {shlex.quote(named)}{more}"


@dataclass(frozen=True)
class RunRow:
    """One row of `rlhf status`. Times are in seconds; unknown values are None."""

    run: str
    state: RunState
    step: int = 0
    max_steps: int | None = None
    s_per_step: float | None = None
    time_left_s: float | None = None
    log_age_s: float | None = None
    last_checkpoint: str | None = None
    job_id: str | None = None
    slurm_state: str | None = None
    reason: str | None = None
    config_edited: bool = False


def pace(folder: RunFolder) -> tuple[float | None, float | None]:
    """Return seconds per step and seconds since the last log event; None if too few are logged. May raise OSError."""
    if not folder.metrics.is_file():
        return None, None
    events, _ = events_after(folder.metrics, max(0, folder.metrics.stat().st_size - _TAIL_BYTES))
    steps, times = ([cast(float, event[name]) for event in events[-_EVENTS:]] for name in ("step", "time_s"))
    passed = steps[-1] - steps[0] if steps else 0
    s_per_step = (times[-1] - times[0]) / passed if passed > 0 else None
    return s_per_step, max(0.0, time.time() - folder.metrics.stat().st_mtime)


@dataclass(frozen=True)
class RunGroup:
    """Runs in one folder: those of a sweep, or single runs, newest first. `swept` are a sweep's keys."""

    path: Path
    folders: tuple[RunFolder, ...]
    is_sweep: bool
    swept: tuple[str, ...]


def groups_of(word: str) -> list[RunGroup]:
    """Return the groups below a folder, newest first; [] for a sweep, a run, or few enough runs for one table."""
    path = Path(word).expanduser()
    if not path.is_dir() or (path / SWEEP).is_file():
        return []
    by_parent: dict[Path, list[RunFolder]] = {}
    for folder in runs_below(path):
        by_parent.setdefault(folder.path.parent, []).append(folder)
    if sum(map(len, by_parent.values())) <= _MOST_TOGETHER:
        return []

    def age(folder: RunFolder) -> float:
        return -folder.config.stat().st_mtime

    groups = [
        RunGroup(parent, tuple(sorted(folders, key=age)), (parent / SWEEP).is_file(), swept_in(parent))
        for parent, folders in by_parent.items()
    ]
    return sorted(groups, key=lambda group: age(group.folders[0]))


def newest_of(group: RunGroup) -> list[str]:
    """Return the paths of a group's newest runs: a sweep as one path, single runs up to a limit."""
    if group.is_sweep:
        return [str(group.path)]
    return [str(folder.path) for folder in group.folders[:_MOST_TOGETHER]]


def swept_in(folder: Path) -> tuple[str, ...]:
    """Return the keys varied by the sweep in a folder; () if its sweep.json cannot be read."""
    try:
        swept = read_json(folder / SWEEP).get("swept")
    except RunError:
        return ()
    return tuple(str(key) for key in swept) if isinstance(swept, list) else ()


def words_in(sweep: Mapping[str, object]) -> list[str]:
    """Return the overrides from which the jobs in a sweep.json are made, each once."""
    jobs = sweep.get("jobs")
    jobs = jobs if isinstance(jobs, list) else []
    lists = [sweep.get("overrides"), *(job.get("overrides") for job in jobs if isinstance(job, dict))]
    return list(dict.fromkeys(str(word) for words in lists if isinstance(words, list) for word in words))


def refuse_links(folder: Path) -> None:
    """Raise RunError for a link out of the folder, through which a file would be overwritten, and for a FIFO."""
    inside, found = folder.resolve(), list[Path]()
    for place in (Path(root, name) for root, below, files in os.walk(folder) for name in (*below, *files)):
        # In wandb/RUN/logs, wandb links to the logs in its cache, and a resumed run has new ones.
        of_wandb = place.parent.name == "logs" and place.parent.parent.parent == folder / "wandb"
        is_outside = place.is_symlink() and not place.resolve().is_relative_to(inside) and not of_wandb
        if is_outside or (place.exists() and not place.is_file() and not place.is_dir()):
            found.append(place)
    if found:
        shown = [f"{link.relative_to(folder)}{f' -> {link.readlink()}' if link.is_symlink() else ''}" for link in found]
        link, target = shlex.quote(str(found[0])), shlex.quote(str(found[0].resolve()))
        what = "the run folder holds links to the outside, or pipes: what they name would be read or overwritten"
        got, hint = "\n".join(shown[:_MOST_LINKS]), f"rm {link} && cp -r {target} {link}"
        raise RunError(what, where=str(folder), got=got, expected="only files and folders", hint=hint)
