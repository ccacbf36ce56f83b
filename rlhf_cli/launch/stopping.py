"""Stop a run from outside without losing anything; say how its ranks ended, which failed first, and how to continue.

After the first signal, training continues to the end of its optimizer step and saves. The second signal interrupts at
once. If no step ends within the grace period, the process exits, and the last checkpoint is what remains.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from operator import attrgetter
from os import _exit  # the original: os._exit is patched while rewards run
from pathlib import Path
from types import FrameType

from pydantic import TypeAdapter, ValidationError

from rlhf_cli.config.schema.run_sections import Launch
from rlhf_cli.errors import (
    CTRL_C,
    EXIT_CRASH,
    EXIT_PREEMPTED,
    GuardStopped,
    Interrupted,
    Preempted,
    RankFailed,
    RlhfError,
    RunError,
    UserError,
    described,
    message_of,
    with_causes,
)
from rlhf_cli.process import heard_in_time, is_running, signal_name
from rlhf_cli.runs import heartbeat as beats
from rlhf_cli.runs.heartbeat import Heartbeat, heartbeat_files, heartbeats, in_words, while_running
from rlhf_cli.runs.run_folder import RunFolder, read_json, write_json
from rlhf_cli.runs.run_status import FAILED, FINISHED, PREEMPTED, preempt, read_status, set_stop_reason, update_status
from rlhf_cli.text.redaction import traceback_of

_ONE_WISH_S = 1.0  # s within which signals count as one: Slurm signals a rank and also its parent, which forwards it
STOPPED = (EXIT_PREEMPTED, -signal.SIGTERM, -signal.SIGUSR1)  # a stopped rank's exit codes; signals: no handler yet
_TORCH_KILLS_S = 20.0  # torch kills ranks 30 s after another one failed: a kill so long after the last look is torch's

_OF_GPU = ("CUDA out of memory", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "HIP out of memory")
_OF_CPU = ("can't allocate memory", "not enough memory: you tried to allocate", "Cannot allocate memory")
_LEARNING = (
    "a smaller trainer.args.per_device_train_batch_size with a larger gradient_accumulation_steps, "
    "trainer.args.gradient_checkpointing=true, model.lora.r=16, or launch=fsdp2 on several GPUs"
)
_ADVICE = {  # phase -> what needs less memory there; phases that are not listed learn
    beats.LOADING: "model.lora.r=16 model.quantize=4bit, model.dtype=bfloat16, or launch=fsdp2 on several GPUs",
    beats.GENERATION: "fewer completions at once (a smaller trainer.args.steps_per_generation or "
    "per_device_train_batch_size), or a smaller trainer.args.max_completion_length",
    beats.REWARDS: "a smaller rewards.NAME.batch_size, rewards.NAME.device=cpu for a reward model, or "
    "rewards.NAME.isolate=true for a function",
    beats.OPTIMIZER: "model.lora.r=16, trainer.args.optim=adafactor, or launch=zero2 on several GPUs",
    beats.EVALUATION: "a smaller trainer.args.per_device_eval_batch_size",
    beats.SAVING: "trainer.args.save_only_model=true (nothing resumes exactly), or model.lora.r=16",
}


class Stopping:
    """A request that this process end, `grace_s` seconds later.

    `must_save_by` is in seconds since the epoch. A thread calls `on_late(reason)` after the grace period.
    """

    def __init__(self, *, grace_s: float, must_save_by: float | None, on_late: Callable[[str], None]) -> None:
        self.reason: str | None = None  # why the process should end, or None if it should not
        self._grace_s = grace_s
        self._must_save_by = must_save_by
        self._on_late = on_late
        self.waits_for_step = False  # before the first step a signal interrupts: there is no progress to lose
        self._is_closed = False
        self._asked_at = float("-inf")
        self._timers: list[threading.Timer] = []
        if must_save_by is not None:
            why = f"it had to save by {_clock(must_save_by)}, before a step ended"
            self._leave_in(max(0.0, must_save_by - time.time()), why)

    def is_due(self, longest_step_s: float) -> bool:
        """Return whether to stop now: on request, or if another step might leave no grace before the deadline."""
        deadline = self._must_save_by
        if self.reason is None and deadline is not None and time.time() + longest_step_s + self._grace_s > deadline:
            self.reason = f"it has to save by {_clock(deadline)}"
        return self.reason is not None

    def ask(self, reason: str) -> None:
        """Request an end at the next step. A repeat within a second is ignored, except Ctrl-C.

        Raise Interrupted if there is no step to wait for, and on a second request.
        """
        is_echo = reason != CTRL_C and time.monotonic() < self._asked_at + _ONE_WISH_S
        self._asked_at = time.monotonic()
        if is_echo:
            return
        is_first, self.reason = self.reason is None, reason
        if not (is_first and self.waits_for_step):
            raise Interrupted(reason)
        self._leave_in(self._grace_s, f"{reason}; no step ended within {self._grace_s:g} s")
        say_heard(reason)

    def close(self) -> None:
        """Cancel all timers; later requests interrupt, and never end the process: the training is over."""
        self._is_closed, self.waits_for_step = True, False
        for timer in self._timers:
            timer.cancel()

    def _leave_in(self, seconds: float, reason: str) -> None:
        timer = threading.Timer(seconds, self.leave, (reason,))
        timer.daemon = True
        timer.start()
        self._timers.append(timer)

    def leave(self, reason: str) -> None:
        """End the process at once; called from a thread, also while the main thread is blocked."""
        if self._is_closed:
            return
        try:
            self._on_late(reason)
        finally:
            _exit(EXIT_PREEMPTED)

    @contextlib.contextmanager
    def heard(self) -> Iterator[None]:
        """Open a context in which SIGTERM, SIGUSR1 and Ctrl-C ask this process to end, and SIGHUP is ignored.

        A signal before the first step ends the process even while torch waits for other ranks.
        """

        def ask(number: int, _: FrameType | None) -> None:
            self.ask(signal_name(number))

        def leave(number: int) -> None:
            if not self.waits_for_step:
                self.leave(signal_name(number))

        asking = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
        with heard_in_time(dict.fromkeys(asking, ask) | {signal.SIGHUP: signal.SIG_IGN}, leave):
            try:
                yield
            finally:
                self.close()


def say_heard(reason: str) -> None:
    """Print that the request was received and what happens next."""
    below_the_bar = "\n" if sys.stderr.isatty() else ""
    text = f"{below_the_bar}{reason}: saving at the end of this step; a second one stops at once"
    print(text, file=sys.stderr, flush=True)


def _clock(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def preempted(folder: RunFolder, reason: str | None = None) -> Preempted:
    """Return the error for a stopped run: last saved step and resume command. `reason` is for its status."""
    checkpoint, go_on = folder.last_checkpoint(), f"`rlhf resume {folder.typed}`"
    saved = f"no checkpoint yet; {go_on} restarts at step 0"
    if checkpoint is not None:
        step, reached = int(checkpoint.name.rpartition("-")[2]), read_status(folder).step
        lost = f" (training was at step {reached})" if reached > step else ""
        saved = f"saved step {step}{lost}; {go_on}"
    error = Preempted(saved)
    error.reason = reason
    return error


def must_save_by(launch: Launch, environment: Mapping[str, str] = os.environ) -> float | None:
    """Return when the run must be saved, in seconds since the epoch, by `launch` or the Slurm job's end."""
    times = [datetime.fromisoformat(launch.must_save_by).timestamp()] if launch.must_save_by is not None else []
    if (end := environment.get("SLURM_JOB_END_TIME", "")).isdigit():
        times.append(float(end))
    return min(times, default=None)


@dataclass(frozen=True)
class RankFailure:
    """Why a rank failed or, with exit code 75, left after a request to stop. `time` is in seconds since the epoch."""

    rank: int
    time: float
    message: str
    traceback: str = ""
    exit_code: int = EXIT_CRASH
    is_by_guard: bool = False

    def record(self, folder: RunFolder) -> None:
        """Write it into the run folder, where the command and the other ranks find it. Raise OSError."""
        write_json(failure_file(folder, self.rank), asdict(self))


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


def record_failure(folder: RunFolder, rank: int, error: BaseException) -> None:
    """Record the error that ended this rank; of several ranks, the command names the first that failed."""
    text = traceback_of(error)
    logging.getLogger("rlhf").error("rank %d failed\n%s", rank, text)
    message = str(error) if isinstance(error, RlhfError) else described(error)
    exit_code, is_by_guard = getattr(error, "exit_code", EXIT_CRASH), isinstance(error, GuardStopped)
    failure = RankFailure(rank, time.time(), message, text, exit_code, is_by_guard)
    with contextlib.suppress(OSError):  # on a full disk, the terminal message must do
        failure.record(folder)
    if rank == 0:
        update_status(folder, state=FAILED, reason=message, failing_rank=rank)


def record_stop(folder: RunFolder, rank: int, reason: str) -> bool:
    """Record that this rank left before the others could agree on a step, so that their errors are not the cause.

    Return whether that stopped the run: this is rank 0, and none had failed before.
    """
    if os.environ.get("WORLD_SIZE", "1") != "1":
        with contextlib.suppress(OSError):
            RankFailure(rank, time.time(), reason, exit_code=EXIT_PREEMPTED).record(folder)
    is_end = rank == 0 and first_failure(folder) is None
    if is_end:
        preempt(folder, reason)
    return is_end


@dataclass(frozen=True)
class RanksEnd:
    """How the ranks of one machine ended: without `failures` all well, or stopped at the same step."""

    failures: list[RankFailure]
    asked_by: str | None = None  # who asked this machine to stop
    is_late: bool = False  # ranks were killed after their grace period


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
