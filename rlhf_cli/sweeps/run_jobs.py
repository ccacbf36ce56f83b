"""Run the frozen jobs of a sweep, several at a time."""

from __future__ import annotations

import contextlib
import os
import signal
from collections import deque
from collections.abc import Sequence
from types import FrameType

from rich.console import Console

from rlhf_cli.display.sweep_progress import SweepDisplay
from rlhf_cli.errors import CTRL_C, EXIT_CRASH, EXIT_OK, EXIT_PREEMPTED, EXIT_USER_ERROR, RunError
from rlhf_cli.launch.gpu_locks import HeldGpus, gpus_of, holders_of, take, take_free
from rlhf_cli.plan.batches import count
from rlhf_cli.plan.checks.machine_checks import has_passed
from rlhf_cli.plan.devices import num_cores, visible_gpus
from rlhf_cli.plan.launch_plan import plan_launch
from rlhf_cli.process import handled
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_status import RunState, Status, preempt, read_status, set_stop_reason, update_status
from rlhf_cli.sweeps import SweepOptions
from rlhf_cli.sweeps.sweep_folder import ReadyJob
from rlhf_cli.sweeps.warm_processes import JobRequest, WarmProcesses

_THREADS = "OMP_NUM_THREADS"
_GPUS = "CUDA_VISIBLE_DEVICES"


def slot_for(job: ReadyJob, threads: int | None) -> tuple[HeldGpus, dict[str, str]] | None:
    """Lock GPUs for a job; return them and its environment, or None if too few are free. `threads` None: as usual."""
    own = job.plan.accelerate_env
    launch = plan_launch(job.experiment, job.folder.path, accelerate_env=own)
    gpus, run, is_pinned = gpus_of(launch), job.folder.shown, _GPUS in own
    held = take(gpus, run) if is_pinned or not gpus else take_free(len(gpus), run)
    if held is None:
        return None
    environment = dict(os.environ)
    if held.gpus and not is_pinned:
        environment[_GPUS] = ",".join(held.gpus)
    # A run with several ranks uses one thread per rank, as it does outside a sweep.
    if threads is not None and launch.in_this_process:
        environment[_THREADS] = str(threads)
    return held, environment


def threads_of_each(at_once: int) -> int | None:
    """Return each job's share of the usable cores, at most what OMP_NUM_THREADS asks for; None for one at a time."""
    if at_once == 1:
        return None
    # Two jobs with two threads each took twenty times as long on two cores.
    cores, asked = num_cores(), os.environ.get(_THREADS, "")
    return max(1, min(cores // at_once, int(asked) if asked.isdigit() and int(asked) else cores))


_LOOK_EVERY_S = 0.2
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGKILL)
"""Signals sent to the jobs on the first, second and third request to stop: save, end at once, be killed."""


class JobsToCome:
    """Jobs that are created while others run, as a search does with its trials; of a grid, none."""

    @property
    def num_to_come(self) -> int:
        return 0

    def next_job(self) -> ReadyJob | None:
        return None

    def should_stop(self, job: ReadyJob) -> bool:
        """Return, True at most once, whether a running job should be stopped."""
        return False

    def ended(self, job: ReadyJob, status: Status) -> Status:
        return status


def run_jobs(
    console: Console, jobs: Sequence[ReadyJob], options: SweepOptions, to_come: JobsToCome | None = None
) -> int:
    """Run the jobs, then those `to_come`, and return the exit code of the sweep.

    It is 0 if all are done, 75 if the sweep was stopped, 1 if a job crashed, 2 if all failures were the user's errors.
    Raise RlhfError if the process that forks the jobs has died.
    """
    runner = _Runner(console, jobs, options, to_come or JobsToCome())
    asking = dict.fromkeys((signal.SIGTERM, signal.SIGUSR1, signal.SIGINT), runner.ask)
    with handled(asking | {signal.SIGHUP: signal.SIG_IGN}):
        try:
            return runner.run()
        finally:
            runner.close()


class _Runner:
    """The waiting and running jobs, by their place in the sweep, and how each ended."""

    def __init__(self, console: Console, jobs: Sequence[ReadyJob], options: SweepOptions, to_come: JobsToCome) -> None:
        self._to_come = to_come
        self._at_once = min(options.at_once, max(1, len(jobs) + to_come.num_to_come))
        self._threads = threads_of_each(self._at_once)
        self._processes = WarmProcesses(threads=self._threads)
        self._jobs = list(jobs)
        self._waiting = deque(range(len(jobs)))
        self._running: dict[int, HeldGpus] = {}
        self._pids: dict[int, int] = {}
        self._codes: list[int] = []
        self._asked: list[str] = []
        self._heard = 0
        self._has_said_busy = self._has_said_late = False
        self._display = SweepDisplay(console, self._jobs, at_once=self._at_once, metric=options.watch)

    def ask(self, number: int, _: FrameType | None = None) -> None:
        """Record a request to stop. It is handled in the main loop."""
        self._asked.append(CTRL_C if number == signal.SIGINT else signal.Signals(number).name)

    def run(self) -> int:
        with self._display:
            while self._running or self._may_begin():
                self._stop_where_asked()
                while len(self._running) < self._at_once and self._may_begin() and self._begin_next():
                    pass
                for event in self._processes.events(_LOOK_EVERY_S):
                    if event.pid is not None:
                        self._pids[event.id] = event.pid
                        self._jobs[event.id].begins()  # restart its clock after the shared imports
                        self._signal(event.id, times=self._heard)
                    elif event.code is not None:
                        self._end(event.id, event.code)
                for number in self._pids:
                    if self._to_come.should_stop(self._jobs[number]):
                        self._signal(number, times=1)
                self._display.look()
        # Without a request to stop, jobs are left if their deadline has passed.
        if self._waiting or self._to_come.num_to_come > 0 or (self._asked and EXIT_PREEMPTED in self._codes):
            return EXIT_PREEMPTED
        worst_first = (EXIT_CRASH, EXIT_PREEMPTED, EXIT_USER_ERROR)
        return next((code for code in worst_first if code in self._codes), EXIT_OK)

    def close(self) -> None:
        self._processes.close()
        for held in self._running.values():
            held.release()

    def _may_begin(self) -> bool:
        if self._asked:
            return False
        if not self._waiting and (job := self._to_come.next_job()) is not None:
            self._jobs.append(job)
            self._waiting.append(len(self._jobs) - 1)
        self._display.num_to_come = self._to_come.num_to_come
        if not self._waiting:
            return False
        launch = self._jobs[self._waiting[0]].experiment.launch
        is_late = launch.must_save_by is not None and has_passed(launch.must_save_by, grace_s=launch.grace_s)
        if is_late and not self._has_said_late:
            self._has_said_late = True
            left = count(len(self._waiting), "run")
            self._display.say(f"launch.must_save_by={launch.must_save_by} leaves no time for {left}")
        return not is_late

    def _begin_next(self) -> bool:
        """Start the first waiting job. Return False if no GPU is free for it now."""
        number = self._waiting[0]
        job = self._jobs[number]
        if (slot := slot_for(job, self._threads)) is None:
            if not self._has_said_busy and not self._running:  # others hold the GPUs, not this sweep
                self._has_said_busy = True
                self._display.say(f"{job.name} waits for a GPU. {'; '.join(holders_of(visible_gpus()))}")
            return False
        self._waiting.popleft()
        self._running[number], environment = slot
        job.begins()
        self._display.began(job)
        run, resume, take_over = str(job.folder.path), job.resume, job.take_over
        self._processes.begin(JobRequest(number, run, resume=resume, take_over=take_over, environment=environment))
        return True

    def _end(self, number: int, code: int) -> None:
        job = self._jobs[number]
        self._running.pop(number).release()
        self._pids.pop(number, None)
        status = end_status(job.folder, code, asked_by=self._asked[0] if self._heard else None)
        job.ends(status)
        if status.state == RunState.FAILED:
            code = code if code in (EXIT_CRASH, EXIT_USER_ERROR) else EXIT_CRASH
        else:
            code = EXIT_OK if status.state == RunState.FINISHED else EXIT_PREEMPTED
        status = self._to_come.ended(job, status)
        job.state = status.state
        self._codes.append(EXIT_OK if status.state == RunState.PRUNED else code)
        self._display.ended(job, status)

    def _stop_where_asked(self) -> None:
        while self._heard < min(len(self._asked), len(_SIGNALS)):
            self._heard += 1
            if self._running:
                what = ("saving {}; again to stop now", "stopping {} now", "killing {}")[self._heard - 1]
                runs = f"the {len(self._running)} runs in progress" if len(self._running) > 1 else "the run in progress"
                self._display.say(f"{self._asked[self._heard - 1]}: {what.format(runs)}")
            for number in self._running:
                self._signal(number, times=self._heard)

    def _signal(self, number: int, *, times: int) -> None:
        if times and (pid := self._pids.get(number)) is not None:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(pid, _SIGNALS[times - 1])


def end_status(folder: RunFolder, code: int, *, asked_by: str | None) -> Status:
    """Return the status of a job that ended with an exit code or minus a signal; write it if the job could not."""
    try:
        status = read_status(folder)
    except RunError as error:
        return Status(RunState.FAILED, reason=str(error))
    has_ended = status.state in (RunState.FAILED, RunState.PREEMPTED) and code >= 0
    if has_ended or status.state == RunState.FINISHED:
        return set_stop_reason(folder, asked_by) if asked_by is not None else status
    if asked_by is not None and code in (-signal.SIGTERM, -signal.SIGINT, -signal.SIGKILL, EXIT_PREEMPTED):
        return preempt(folder, asked_by)
    if code < 0:
        memory = ", probably for lack of memory (`dmesg | tail`)" if -code == signal.SIGKILL else ""
        reason = f"its process was killed by {signal.Signals(-code).name}{memory}"
    else:
        text = folder.console.read_text(errors="replace") if folder.console.is_file() else ""
        last = next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "no output")
        if code == EXIT_PREEMPTED:  # its last status was overwritten: it left from a thread while it began to train
            return preempt(folder, last.removeprefix("stopped: "))
        reason = f"its process ended with exit code {code}: {last}"
    return update_status(folder, state=RunState.FAILED, reason=reason)
