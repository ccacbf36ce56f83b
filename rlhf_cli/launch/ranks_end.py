"""Say how the ranks of a run ended, with or without a record, which failed first, and how to continue."""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from rlhf_cli.errors import (
    EXIT_CRASH,
    EXIT_PREEMPTED,
    GuardStopped,
    RankFailed,
    RlhfError,
    RunError,
    UserError,
    message_of,
    with_causes,
)
from rlhf_cli.launch.stopping import preempted
from rlhf_cli.process import is_running, signal_name
from rlhf_cli.runs import heartbeat as beats
from rlhf_cli.runs.heartbeat import Heartbeat, heartbeat_files, heartbeats, in_words, while_running
from rlhf_cli.runs.run_folder import RunFolder, read_json
from rlhf_cli.runs.run_status import FAILED, FINISHED, PREEMPTED, preempt, read_status, set_stop_reason, update_status

STOPPED = (EXIT_PREEMPTED, -signal.SIGTERM, -signal.SIGUSR1)
"""Exit codes of a rank after a request to stop: its own, or the signal if no handler was installed yet."""
_TORCH_KILLS_S = 20.0  # torch kills ranks 30 s after another one failed: a kill so long after the last look is torch's


@dataclass(frozen=True)
class RankFailure:
    """Why a rank failed or, with exit code 75, left after a request to stop. `time` is in seconds since the epoch."""

    rank: int
    time: float
    message: str
    traceback: str = ""
    exit_code: int = EXIT_CRASH
    is_by_guard: bool = False


def failure_file(folder: RunFolder, rank: int | str) -> Path:
    """Return the file in which a rank records why it failed; rank `*` gives the pattern for all."""
    return folder.path / f"failure-rank{rank}.json"


def forget_failures(folder: RunFolder) -> None:
    """Remove the failure and heartbeat files of earlier starts."""
    failures = folder.path.glob(failure_file(folder, "*").name)
    for stale in (*failures, *heartbeat_files(folder.path)):
        stale.unlink()


def resume_hint(folder: RunFolder) -> str:
    """Return what remains of a failed run: its last checkpoint and the resume command."""
    checkpoint = folder.last_checkpoint()
    if checkpoint is None:
        return "no checkpoint was saved"
    return f"last good checkpoint: {checkpoint.name}; `rlhf resume {folder.typed}`"


@dataclass(frozen=True)
class RanksEnd:
    """How the ranks of one machine ended: without `failures` all well, or stopped at the same step.

    `asked_by` is who asked this machine to stop. `is_late`: ranks were killed after their grace period.
    """

    failures: list[RankFailure]
    asked_by: str | None = None
    is_late: bool = False


def failures_of(
    folder: RunFolder, codes: Mapping[int, tuple[int, float]], *, log: Path, seen_at: float
) -> list[RankFailure]:
    """Return why ranks failed: their own records, and for those without a record how they ended.

    `codes` maps a rank to its exit code (negative for a signal) and when torch noticed its end. `seen_at` is when all
    ranks were last seen alive: an unrecorded end counts from then, because other ranks notice it, and record that,
    before torch does. A rank that ended as after a request to stop is a cause only if there is no other.
    """
    found, stopped = {failure.rank: failure for failure in _recorded(folder)}, []
    for rank, (code, noticed_at) in codes.items():
        if rank in found or (code == -signal.SIGKILL and noticed_at > seen_at + _TORCH_KILLS_S):
            continue
        if code in STOPPED:
            stopped.append(RankFailure(rank, seen_at, "stopped", exit_code=EXIT_PREEMPTED))
            continue
        beat = heartbeats(folder.path).get(rank)
        reward = ", ".join(beat.rewards) if beat else ""
        during = f" while reward {reward!r} ran" if reward else f" during {beat.phase}" if beat else ""
        how = f"ended with code {code}{during} without a message; see {log}"
        if code < 0:
            meaning = ", most likely out of memory: see `dmesg | tail`" if -code == signal.SIGKILL else f"; see {log}"
            how = f"was killed by {signal_name(-code)}{during}{meaning}"
        found[rank] = RankFailure(rank, seen_at, how)
    return list(found.values()) or stopped


def first_failure(folder: RunFolder) -> RankFailure | None:
    """Return the first rank's failure; a killed rank of this machine leaves a heartbeat and no record."""
    failures = [failure for failure in _recorded(folder) if failure.exit_code != EXIT_PREEMPTED]
    for beat in heartbeats(folder.path).values():
        if not is_running(beat.pid):
            what = "was killed" + (f" while reward {', '.join(beat.rewards)!r} ran" if beat.rewards else "")
            failures.append(RankFailure(beat.rank, time.time() - beat.age_s, what))
    return min(failures, key=attrgetter("time"), default=None)


def _recorded(folder: RunFolder) -> list[RankFailure]:
    found = []
    for file in folder.path.glob(failure_file(folder, "*").name):
        with contextlib.suppress(RunError, ValidationError):  # a full disk has cut the record off
            found.append(TypeAdapter(RankFailure).validate_python(read_json(file)))
    return found


def raise_end(folder: RunFolder, end: RanksEnd, *, grace_s: float) -> None:
    """Return if the run has finished; else raise Preempted or the error of the first rank that failed."""
    first = min(end.failures, key=attrgetter("time"), default=None)
    status = read_status(folder)
    is_stopped = first is None and (status.state in (FINISHED, PREEMPTED) or end.asked_by is not None)
    if end.is_late or is_stopped or (first is not None and first.exit_code == EXIT_PREEMPTED):
        for failure in end.failures:
            failure_file(folder, failure.rank).unlink(missing_ok=True)
        if status.state != PREEMPTED:
            status = preempt(folder, f"it did not end within {grace_s:g} s of the request")
        elif end.asked_by:
            set_stop_reason(folder, end.asked_by)
        if status.state == FINISHED:
            return
        raise preempted(folder, end.asked_by or read_status(folder).reason)
    raise error_of(folder, first)


def error_of(folder: RunFolder, first: RankFailure | None) -> RlhfError:
    """Write the first failure to the run's status, print its traceback, and return its error."""
    if first is None:
        reason = f"the ranks ended before the run had{while_running(folder.path)}; see {folder.log}"
        update_status(folder, state=FAILED, reason=reason)
        return RankFailed("training failed", where=str(folder.path), got=reason)
    update_status(folder, state=FAILED, reason=first.message, failing_rank=first.rank)
    if first.exit_code != EXIT_CRASH:
        return UserError(first.message)
    if first.is_by_guard:
        return GuardStopped(first.message)
    if first.traceback:
        print(first.traceback, file=sys.stderr)
    failed = "failed: " if first.traceback else ""
    return RankFailed(f"rank {first.rank} {failed}{first.message}", where=str(folder.path))


_OF_GPU = ("CUDA out of memory", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "HIP out of memory")
_OF_CPU = ("can't allocate memory", "not enough memory: you tried to allocate", "Cannot allocate memory")
_LEARNING = (
    "a smaller trainer.args.per_device_train_batch_size with a larger gradient_accumulation_steps, "
    "trainer.args.gradient_checkpointing=true, model.lora.r=16, or launch=fsdp2 on several GPUs"
)
_ADVICE = {
    beats.LOADING: "model.lora.r=16 model.quantize=4bit, model.dtype=bfloat16, or launch=fsdp2 on several GPUs",
    beats.GENERATION: "fewer completions at once (a smaller trainer.args.steps_per_generation or "
    "per_device_train_batch_size), or a smaller trainer.args.max_completion_length",
    beats.REWARDS: "a smaller rewards.NAME.batch_size, rewards.NAME.device=cpu for a reward model, or "
    "rewards.NAME.isolate=true for a function",
    beats.OPTIMIZER: "model.lora.r=16, trainer.args.optim=adafactor, or launch=zero2 on several GPUs",
    beats.EVALUATION: "a smaller trainer.args.per_device_eval_batch_size",
    beats.SAVING: "trainer.args.save_only_model=true (nothing resumes exactly), or model.lora.r=16",
}
"""Phase -> what needs less memory there; phases that are not listed learn."""


def out_of_memory(error: BaseException, heartbeat: Heartbeat) -> RlhfError | None:
    """Return the error with advice if `error` or one of its causes says that memory is full, else None."""
    chain = list(with_causes(error))
    cause = next((one for one in chain if _kind(one) is not None), None)
    if cause is None:
        return None
    reward = next((name for one in chain if (name := getattr(one, "reward", None))), None)
    on_gpu = _kind(cause) == "gpu"
    phases = [phase for phase in heartbeat.phases if phase not in beats.PARTS] or [beats.LOADING]
    doing = in_words(heartbeat.phases) + (f", reward {reward!r}" if reward is not None else "")
    what = ("CUDA" if on_gpu else "the machine is") + f" out of memory: {doing}"
    got = str(cause).partition("  See documentation")[0].partition("\n")[0] or type(cause).__name__
    advice = _ADVICE.get(phases[-1], _LEARNING).replace("NAME", reward or "NAME")
    return RlhfError(what, where=f"rank {heartbeat.rank}, {doing}", got=got, expected="that it fits", advice=advice)


def _kind(error: BaseException) -> str | None:
    """Return which memory an error says is full, "gpu" or "cpu"; None for other errors."""
    if isinstance(error, MemoryError):
        return "cpu"
    text = message_of(error)
    if type(error).__name__ == "OutOfMemoryError" or any(words in text for words in _OF_GPU):
        return "gpu"
    is_of_torch = isinstance(error, RuntimeError | OSError)
    return "cpu" if is_of_torch and any(words in text for words in _OF_CPU) else None
