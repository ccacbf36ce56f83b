"""Run the frozen jobs of a sweep, several at a time."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Protocol

from rich.console import Console

from rlhf_cli.display.sweep_tables import PRUNED
from rlhf_cli.errors import CTRL_C, EXIT_CRASH, EXIT_OK, EXIT_PREEMPTED, EXIT_USER_ERROR, RunError
from rlhf_cli.launch.gpu_locks import HeldGpus, gpus_of, holders_of, take
from rlhf_cli.plan.devices import visible_gpus
from rlhf_cli.process import handled
from rlhf_cli.runs.run_status import FAILED, FINISHED, PREEMPTED, Status, name_who_asked, read_status, update_status
from rlhf_cli.sweeps.checked_jobs import ReadyJob
from rlhf_cli.sweeps.job_watch import JobWatch, SweepDisplay
from rlhf_cli.sweeps.sweep_options import SweepOptions
from rlhf_cli.sweeps.warm_processes import JobRequest, WarmProcesses

_THREADS = "OMP_NUM_THREADS"
_GPUS = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Slot:
    """The resources of a job: GPUs, locked by this process, and the environment that exposes them."""

    held: HeldGpus
    environment: dict[str, str]


def slot_for(job: ReadyJob, threads: int | None) -> Slot | None:
    """Return the resources for a job, or None if not enough suitable GPUs are free now.

    `threads` of a job may be None, for its environment's setting or torch's default.
    """
    launch = job.launch
    wanted = gpus_of(launch)
    held = take(wanted, job.folder.shown) if job.is_pinned or not wanted else _any(len(wanted), job.folder.shown)
    if held is None:
        return None
    environment = dict(os.environ)
    if held.gpus and not job.is_pinned:
        environment[_GPUS] = ",".join(held.gpus)
    # A run with several ranks uses one thread per rank, as it does outside a sweep.
    if threads is not None and launch.in_this_process:
        environment[_THREADS] = str(threads)
    return Slot(held, environment)


def threads_of_each(at_once: int) -> int | None:
    """Return the threads per job: the usable cores divided by `at_once`, or fewer if the user asked for fewer.

    More threads than cores block one another: two jobs with two threads each took twenty times as long on two cores.
    Return None for one job at a time, which runs like a single run.
    """
    if at_once == 1:
        return None
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    share = max(1, cores // at_once)
    asked = os.environ.get(_THREADS, "")
    return min(share, int(asked)) if asked.isdigit() and int(asked) else share


def _any(count: int, run: str) -> HeldGpus | None:
    """Lock and return `count` free GPUs of those visible to this process, or None if there are fewer."""
    found: list[HeldGpus] = []
    for gpu in visible_gpus():
        if (held := take([gpu], run)) is not None:
            found.append(held)
        if len(found) == count:
            return HeldGpus(tuple(one.gpus[0] for one in found), [lock for one in found for lock in one.locks])
    for held in found:
        held.release()
    return None


_LOOK_EVERY_S = 0.2
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGKILL)
"""Signals sent to the jobs on the first, second and third request to stop: save, end at once, be killed."""


class JobsToCome(Protocol):
    """Jobs that are created while others run: the trials of a search, where the next depends on earlier results.

    `next_job` returns the next one, or None if there are no more. `should_stop` says once per job whether it should be
    stopped. `ended` records how one ended, and returns the status to show.
    """

    @property
    def num_to_come(self) -> int: ...
    def next_job(self) -> ReadyJob | None: ...
    def should_stop(self, watch: JobWatch) -> bool: ...
    def ended(self, watch: JobWatch, status: Status) -> Status: ...


def run_jobs(
    console: Console, jobs: Sequence[ReadyJob], options: SweepOptions, *, to_come: JobsToCome | None = None
) -> int:
    """Run the jobs and return the exit code of the sweep.

    The code is 0 if all are done, 75 if the sweep was stopped, 1 if any job crashed, 2 if all failures were user
    errors. `to_come` creates further jobs one by one. Raise RlhfError if the process that forks the jobs has died.
    """
    runner = _Runner(console, jobs, options, to_come)
    asking = dict.fromkeys((signal.SIGTERM, signal.SIGUSR1, signal.SIGINT), runner.ask)
    with handled(asking | {signal.SIGHUP: signal.SIG_IGN}):
        try:
            return runner.run()
        finally:
            runner.close()


class _Runner:
    """The waiting and running jobs, and how each ended."""

    def __init__(
        self, console: Console, jobs: Sequence[ReadyJob], options: SweepOptions, to_come: JobsToCome | None
    ) -> None:
        self._to_come = to_come
        self._options = options
        total = len(jobs) + (to_come.num_to_come if to_come is not None else 0)
        self._at_once = min(options.at_once, max(1, total))
        self._threads = threads_of_each(self._at_once)
        self._processes = WarmProcesses(threads=self._threads)
        self._watches = [JobWatch(job, options.watch) for job in jobs]
        self._waiting = deque(range(len(jobs)))
        self._running: dict[int, Slot] = {}
        self._pids: dict[int, int] = {}
        self._codes: list[int] = []
        self._asked: list[str] = []
        self._heard = 0
        self._has_said_busy = False
        self._display = SweepDisplay(console, self._watches, at_once=self._at_once)

    def ask(self, number: int, _: FrameType | None = None) -> None:
        """Record a request to stop. It is handled in the main loop."""
        self._asked.append(CTRL_C if number == signal.SIGINT else signal.Signals(number).name)

    def run(self) -> int:
        """Run until no job is waiting or running."""
        with self._display:
            while self._running or (not self._asked and self._has_next()):
                self._stop_where_asked()
                while (
                    len(self._running) < self._at_once and not self._asked and self._has_next() and self._begin_next()
                ):
                    pass
                for event in self._processes.events(_LOOK_EVERY_S):
                    if event.pid is not None:
                        self._pids[event.id] = event.pid
                        self._watches[event.id].begins()  # restart its clock after the shared imports
                        self._signal(event.id, times=self._heard)
                    elif event.code is not None:
                        self._end(event.id, event.code)
                self._prune()
                self._display.look()
        if self._asked and (self._waiting or EXIT_PREEMPTED in self._codes):
            return EXIT_PREEMPTED
        for code in (EXIT_CRASH, EXIT_PREEMPTED, EXIT_USER_ERROR):
            if code in self._codes:
                return code
        return EXIT_OK

    def close(self) -> None:
        """End the running jobs and release the GPUs."""
        self._processes.close()
        for slot in self._running.values():
            slot.held.release()

    def _has_next(self) -> bool:
        """Return whether a job is waiting, after trying to create one."""
        if not self._waiting and self._to_come is not None and (job := self._to_come.next_job()) is not None:
            self._watches.append(JobWatch(job, self._options.watch))
            self._waiting.append(len(self._watches) - 1)
            self._display.num_to_come = self._to_come.num_to_come
        return bool(self._waiting)

    def _prune(self) -> None:
        """Stop trials that do worse than others did."""
        for number in self._running if self._to_come is not None else ():
            watch = self._watches[number]
            watch.look()
            if self._to_come is not None and number in self._pids and self._to_come.should_stop(watch):
                self._signal(number, times=1)

    def _begin_next(self) -> bool:
        """Start the first waiting job. Return False if no GPU is free for it now."""
        number = self._waiting[0]
        watch = self._watches[number]
        slot = slot_for(watch.job, self._threads)
        if slot is None:
            self._say_busy(watch.job)
            return False
        self._waiting.popleft()
        self._running[number] = slot
        watch.begins()
        self._display.began(watch)
        folder = watch.job.folder
        self._processes.begin(
            JobRequest(
                id=number,
                run=str(folder.path),
                console=str(folder.console),
                resume=watch.job.resume,
                take_over=watch.job.take_over,
                environment=slot.environment,
                cwd=os.getcwd(),
                argv=sys.argv,
                sys_path=sys.path,
            )
        )
        return True

    def _say_busy(self, job: ReadyJob) -> None:
        """Print once who holds the GPUs if it is not this sweep."""
        if self._has_said_busy or self._running:
            return
        self._has_said_busy = True
        self._display.say(f"{job.name} waits for a GPU. {'; '.join(holders_of(visible_gpus()))}")

    def _end(self, number: int, code: int) -> None:
        watch = self._watches[number]
        self._running.pop(number).held.release()
        self._pids.pop(number, None)
        status = self._concluded(watch.job, code)
        self._codes.append({FINISHED: EXIT_OK, FAILED: code}.get(status.state, EXIT_PREEMPTED))
        if status.state == FAILED and code not in (EXIT_CRASH, EXIT_USER_ERROR):
            self._codes[-1] = EXIT_CRASH
        watch.ends(status)
        if self._to_come is not None:
            status = self._to_come.ended(watch, status)
            watch.state = status.state
        if status.state == PRUNED:
            self._codes[-1] = EXIT_OK
        self._display.ended(watch, status)

    def _concluded(self, job: ReadyJob, code: int) -> Status:
        """Return the status of a job whose process has ended.

        If the process could not write its status, write it here.
        """
        folder = job.folder
        try:
            status = read_status(folder)
        except RunError as error:
            return Status(FAILED, reason=str(error))
        if status.state in (FINISHED, FAILED, PREEMPTED) and (code >= 0 or status.state == FINISHED):
            return name_who_asked(folder, self._asked[0]) if self._heard else status
        if self._heard and code in (-signal.SIGTERM, -signal.SIGINT, -signal.SIGKILL, EXIT_PREEMPTED):
            return update_status(folder, state=PREEMPTED, reason=self._asked[0])
        if code < 0:
            name = signal.Signals(-code).name
            memory = ", most likely for want of memory (`dmesg | tail`)" if -code == signal.SIGKILL else ""
            return update_status(folder, state=FAILED, reason=f"its process was killed by {name}{memory}")
        said = _last_line(folder.console.read_text(errors="replace") if folder.console.is_file() else "")
        return update_status(folder, state=FAILED, reason=f"its process ended with exit code {code}{said}")

    def _stop_where_asked(self) -> None:
        while self._heard < min(len(self._asked), len(_SIGNALS)):
            self._heard += 1
            if self._running:
                what = ("saving {}; once more ends it at once", "ending {} at once", "killing {}")[self._heard - 1]
                runs = f"the {len(self._running)} runs in progress" if len(self._running) > 1 else "the run in progress"
                self._display.say(f"{self._asked[self._heard - 1]}: {what.format(runs)}")
            for number in self._running:
                self._signal(number, times=self._heard)

    def _signal(self, number: int, *, times: int) -> None:
        if times and (pid := self._pids.get(number)) is not None:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(pid, _SIGNALS[times - 1])


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return f": {lines[-1].strip()}" if lines else " and no word"
