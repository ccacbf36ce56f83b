"""Starts jobs as forks of a process that has imported torch and TRL already, and learns how each ended."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from rlhf_cli.errors import RlhfError
from rlhf_cli.plan.launch_plan import python_path
from rlhf_cli.sweeps.job_request import JobRequest

_LAST_LINES = 20
_CLEARING_UP_S = 5.0


@dataclass(frozen=True)
class Began:
    """A job is a process now."""

    job: int
    pid: int


@dataclass(frozen=True)
class JobEnded:
    """A job's process has ended: its exit code, or the negative number of the signal that killed it."""

    job: int
    code: int


class WarmServer:
    """The process that jobs are forks of. It ends with this process, and its jobs with it.

    `threads` is what OpenMP has in it, None for what the environment says.
    """

    def __init__(self, *, threads: int | None) -> None:
        theirs_in, self.requests = os.pipe()
        self.answers, theirs_out = os.pipe()
        environment = {
            **os.environ,
            # Whether there is a GPU is asked without touching it.
            "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
            # pyarrow's allocator would begin a thread.
            "JE_ARROW_MALLOC_CONF": "background_thread:false",
            "PYTHONPATH": python_path(),
        }
        if threads is not None:
            environment["OMP_NUM_THREADS"] = str(threads)
        with tempfile.NamedTemporaryFile("w", prefix="rlhf-sweep-", delete=False) as said:
            self._said = Path(said.name)
            self._process = subprocess.Popen(
                [sys.executable, "-m", "rlhf_cli.sweeps.warm_server", *map(str, (os.getpid(), theirs_in, theirs_out))],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                env=environment,
                pass_fds=(theirs_in, theirs_out),
                start_new_session=True,
            )
        os.close(theirs_in)
        os.close(theirs_out)

    @property
    def pid(self) -> int:
        """Return its process id."""
        return self._process.pid

    def last_words(self) -> str:
        """Return how a server that is gone has ended, and what it printed last."""
        lines = self._said.read_text(encoding="utf-8", errors="replace").splitlines()[-_LAST_LINES:]
        return "\n".join([f"exit code {self._process.wait()}", *lines])

    def close(self) -> None:
        """End it, and with it every job that is still there."""
        os.close(self.requests)
        os.close(self.answers)
        try:
            self._process.wait(_CLEARING_UP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._said.unlink(missing_ok=True)


class WarmProcesses:
    """Jobs as processes that need not import anything. The first request starts the server that they are forks of."""

    def __init__(self, *, threads: int | None) -> None:
        self._threads = threads
        self._server: WarmServer | None = None
        self._buffer = b""

    def begin(self, request: JobRequest) -> None:
        """Ask for a job to begin."""
        if self._server is None:
            self._server = WarmServer(threads=self._threads)
        left = memoryview(json.dumps(asdict(request)).encode() + b"\n")
        with contextlib.suppress(BrokenPipeError):  # whoever waits for what happens learns why
            while left:
                left = left[os.write(self._server.requests, left) :]

    def events(self, timeout_s: float) -> list[Began | JobEnded]:
        """Return what has happened, after waiting for it for so long at most.

        Raises RlhfError where the server is gone, and the jobs with it: what it had to say.
        """
        if self._server is None or not select.select([self._server.answers], [], [], timeout_s)[0]:
            return []
        read = os.read(self._server.answers, 1 << 16)
        if not read:
            raise RlhfError(
                "the process that the runs of a sweep are started from has ended, and they with it",
                got=self._server.last_words(),
                hint="rlhf resume SWEEP",
            )
        *lines, self._buffer = (self._buffer + read).split(b"\n")
        events: list[Began | JobEnded] = []
        for line in lines:
            answer = json.loads(line)
            if "pid" in answer:
                events.append(Began(answer["id"], answer["pid"]))
            elif "code" in answer:
                events.append(JobEnded(answer["id"], answer["code"]))
        return events

    def close(self) -> None:
        """End the server, and with it every job that is still there."""
        if self._server is not None:
            self._server.close()
            self._server = None
