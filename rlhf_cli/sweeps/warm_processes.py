"""Start jobs as forks of a process that has imported torch and TRL but does not use them.

A fork is isolated: what a job changes or breaks does not affect the others. multiprocessing's forkserver is not used,
because with a living child it outlives the process that started it, even if that is killed, and a terminal's signals
reach it. This server dies with the sweep and its children die with it; only the sweep communicates with them.

The sweep sends a `JobRequest` for each job through a pipe, and the server answers with `JobEvent`s.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import logging
import multiprocessing.util
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import weakref
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from rlhf_cli.errors import EXIT_CRASH, EXIT_OK, Preempted, RewardFailed, RlhfError
from rlhf_cli.launch.freeze import plan_frozen
from rlhf_cli.plan.launch_plan import python_path
from rlhf_cli.process import die_with, lasting_output, leave
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.writer_lock import only_writer
from rlhf_cli.text.redaction import remember_typed, safe_output, traceback_of


@dataclass(frozen=True)
class JobRequest:
    """A job to start: its folder, and what its own command would have had."""

    id: int
    run: str
    resume: bool
    take_over: bool
    environment: dict[str, str]
    cwd: str = field(default_factory=os.getcwd)
    argv: list[str] = field(default_factory=lambda: sys.argv)
    sys_path: list[str] = field(default_factory=lambda: sys.path)


_LAST_LINES = 20
_CLEARING_UP_S = 5.0
_LOOK_EVERY_S = 0.05


class JobEvent(NamedTuple):
    """A job's process has started, as `pid`, or ended, with its exit code or the negative number of a signal."""

    id: int
    pid: int | None = None
    code: int | None = None


class WarmProcesses:
    """Jobs forked, without import time, by a server that ends with this process; `threads`: its OpenMP threads."""

    def __init__(self, *, threads: int | None) -> None:
        self._threads = threads
        self._server: subprocess.Popen[bytes] | None = None
        self._output = Path()

    def begin(self, request: JobRequest) -> None:
        """Request the start of a job."""
        if self._server is None:
            self._server, self._sweep = self._start(), RunFolder(Path(request.run).parent)
        with contextlib.suppress(BrokenPipeError):  # `events` then raises with the reason
            self._pipe.send(asdict(request))

    def _start(self) -> subprocess.Popen[bytes]:
        self._pipe, theirs = multiprocessing.Pipe()
        environment = {
            **os.environ,
            # Ask NVML whether there is a GPU, because a CUDA call would break forking.
            "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
            # Otherwise pyarrow's allocator would start a thread.
            "JE_ARROW_MALLOC_CONF": "background_thread:false",
            "PYTHONPATH": python_path(),
        }
        if self._threads is not None:
            environment["OMP_NUM_THREADS"] = str(self._threads)
        module, pipe = "rlhf_cli.sweeps.warm_processes", theirs.fileno()
        with tempfile.NamedTemporaryFile("w", prefix="rlhf-sweep-", delete=False) as output:
            self._output = Path(output.name)
            server = subprocess.Popen(
                [sys.executable, "-m", module, str(os.getpid()), str(pipe)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                pass_fds=[pipe],
                start_new_session=True,
            )
        theirs.close()
        return server

    def events(self, timeout_s: float) -> list[JobEvent]:
        """Return new events, waiting at most `timeout_s` seconds for one. Raise RlhfError if the server has died."""
        if self._server is None:  # no job has started because all GPUs are taken
            time.sleep(timeout_s)
            return []
        found: list[JobEvent] = []
        try:
            while self._pipe.poll(0 if found else timeout_s):
                found.append(JobEvent(*self._pipe.recv()))
        except (EOFError, OSError):
            lines = self._output.read_text(encoding="utf-8", errors="replace").splitlines()[-_LAST_LINES:]
            what = "the process that starts the runs of the sweep has ended, and all of its runs with it"
            got, hint = "\n".join([f"exit code {self._server.wait()}", *lines]), f"rlhf resume {self._sweep.typed}"
            raise RlhfError(what, got=got, hint=hint) from None
        return found

    def close(self) -> None:
        """End the server and every remaining job."""
        if self._server is None:
            return
        self._pipe.close()
        try:
            self._server.wait(_CLEARING_UP_S)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()
        self._output.unlink(missing_ok=True)
        self._server = None


_NOT_FOR_US = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


def main(argv: list[str]) -> None:
    """Serve the sweep with process id `argv[0]` on the pipe that is descriptor `argv[1]`."""
    parent, pipe = (int(word) for word in argv)
    die_with(parent)
    for number in _NOT_FOR_US:
        signal.signal(number, signal.SIG_IGN)
    import torch

    import rlhf_cli.launch.one_run
    import rlhf_cli.trainers.assemble.trainer  # noqa: F401

    if torch.cuda.is_initialized():
        raise RuntimeError("an import has initialised CUDA, which no child of a fork can use")
    gc.collect()
    gc.freeze()  # otherwise each child's first collection would write to, and so copy, all imported objects
    _serve(Connection(pipe))
    leave(EXIT_OK)


def _serve(pipe: Connection) -> None:
    """Start jobs, and report those that end, until the sweep closes its end of the pipe."""
    jobs: dict[int, int] = {}  # process id -> job id
    while True:
        if pipe.poll(_LOOK_EVERY_S):
            try:
                request = JobRequest(**pipe.recv())
                pid = _begin(request, pipe)
                jobs[pid] = request.id
                pipe.send((request.id, pid))
            except (EOFError, OSError):
                return
        while jobs:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            pipe.send((jobs.pop(pid), None, os.waitstatus_to_exitcode(status)))


def _begin(request: JobRequest, pipe: Connection) -> int:
    server = os.getpid()
    # Block signals, so that one sent to the child before its handlers are set waits instead of being lost.
    signal.pthread_sigmask(signal.SIG_BLOCK, _NOT_FOR_US)
    pid = os.fork()
    if pid == 0:
        code = EXIT_CRASH
        try:
            _undo_setup(server, pipe)
            code = _run(request)
        except BaseException:
            traceback.print_exc()
        finally:
            leave(code)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _NOT_FOR_US)
    return pid


def _undo_setup(server: int, pipe: Connection) -> None:
    """Undo the server's setup in the child. A new session keeps the terminal's signals away from it."""
    for number in _NOT_FOR_US:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.setsid()
    die_with(server)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _NOT_FOR_US)
    pipe.close()
    # Keep only the child's own exit handlers: those of libraries would remove folders that all jobs share.
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        finalizer.atexit = False
    atexit._clear()
    for usual in (weakref.finalize._exitfunc, multiprocessing.util._exit_function, logging.shutdown):  # type: ignore[attr-defined]
        atexit.register(usual)


def _run(request: JobRequest) -> int:
    """Become the process that a command would have started, run the job in it, and return the exit code."""
    folder = RunFolder(Path(request.run))
    os.environ.clear()
    os.environ.update(request.environment)
    os.chdir(request.cwd)
    sys.path[:], sys.argv = request.sys_path, request.argv
    console = os.open(folder.console, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for descriptor in (1, 2):
        os.dup2(console, descriptor)
    os.close(console)
    remember_typed(sys.argv[1:])
    with lasting_output(), safe_output():
        try:
            _train(folder, request)
        except RlhfError as error:
            if isinstance(error, RewardFailed) and error.__cause__ is not None:
                print(traceback_of(error.__cause__), end="", file=sys.stderr)
            notes = "".join(f"\n{note}" for note in getattr(error, "__notes__", ()))
            print(f"{'stopped' if isinstance(error, Preempted) else 'error'}: {error}{notes}", file=sys.stderr)
            return error.exit_code
        except KeyboardInterrupt:
            return Preempted.exit_code
        except Exception as error:  # last handler of this process; the traceback goes to console.txt
            print(traceback_of(error), end="", file=sys.stderr)
            return EXIT_CRASH
    return EXIT_OK


def _train(folder: RunFolder, request: JobRequest) -> None:
    import torch

    from rlhf_cli.display.terminal import Screen
    from rlhf_cli.launch.one_run import train_frozen

    asked = os.environ.get("OMP_NUM_THREADS", "")
    if asked.isdigit() and int(asked) != torch.get_num_threads():
        torch.set_num_threads(int(asked))  # torch was imported with another environment
    with only_writer(folder, take_over=request.take_over):
        plan, launch = plan_frozen(folder, resume=request.resume)
        train_frozen(Screen(), folder, plan, launch, resume=request.resume)


if __name__ == "__main__":
    main(sys.argv[1:])
