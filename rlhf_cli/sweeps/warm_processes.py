"""Start jobs as forks of a process that has imported torch and TRL."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from rlhf_cli.errors import RlhfError
from rlhf_cli.plan.launch_plan import python_path


@dataclass(frozen=True)
class JobRequest:
    """A job to start.

    `run` is its folder, `console` the file for its output; `resume` and `take_over` say how it resumes. The other
    fields are the environment, folder and arguments that its own command would have had.
    """

    id: int
    run: str
    console: str
    resume: bool
    take_over: bool
    environment: dict[str, str]
    cwd: str
    argv: list[str]
    sys_path: list[str]


_LAST_LINES = 20
_CLEARING_UP_S = 5.0


@dataclass(frozen=True)
class JobEvent:
    """A job's process has started, as `pid`, or ended, with its exit code or the negative number of a signal."""

    id: int
    pid: int | None = None
    code: int | None = None


class WarmServer:
    """The process that forks the jobs. It ends with this process, and its jobs end with it.

    `threads` is its number of OpenMP threads, None for the environment's setting.
    """

    def __init__(self, *, threads: int | None) -> None:
        theirs_in, self.requests = os.pipe()
        self.answers, theirs_out = os.pipe()
        environment = {
            **os.environ,
            # Ask NVML whether there is a GPU, because a CUDA call would break forking.
            "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
            # Otherwise pyarrow's allocator would start a thread.
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
        """Return the exit code and the last output of a server that has ended."""
        lines = self._said.read_text(encoding="utf-8", errors="replace").splitlines()[-_LAST_LINES:]
        return "\n".join([f"exit code {self._process.wait()}", *lines])

    def close(self) -> None:
        """End it and every remaining job."""
        os.close(self.requests)
        os.close(self.answers)
        try:
            self._process.wait(_CLEARING_UP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._said.unlink(missing_ok=True)


class WarmProcesses:
    """Jobs as processes without import time. The first request starts the server that forks them."""

    def __init__(self, *, threads: int | None) -> None:
        self._threads = threads
        self._server: WarmServer | None = None
        self._buffer = b""

    def begin(self, request: JobRequest) -> None:
        """Request the start of a job."""
        if self._server is None:
            self._server = WarmServer(threads=self._threads)
        left = memoryview(json.dumps(asdict(request)).encode() + b"\n")
        with contextlib.suppress(BrokenPipeError):  # `events` then raises with the reason
            while left:
                left = left[os.write(self._server.requests, left) :]

    def events(self, timeout_s: float) -> list[JobEvent]:
        """Return new events, after waiting at most `timeout_s` seconds for one.

        Raise RlhfError with the server's last output if it has died, and the jobs with it.
        """
        if self._server is None:  # no job has started because all GPUs are taken
            time.sleep(timeout_s)
            return []
        if not select.select([self._server.answers], [], [], timeout_s)[0]:
            return []
        read = os.read(self._server.answers, 1 << 16)
        if not read:
            raise RlhfError(
                "the process that the runs of a sweep are started from has ended, and they with it",
                got=self._server.last_words(),
                hint="rlhf resume SWEEP",
            )
        *lines, self._buffer = (self._buffer + read).split(b"\n")
        answers = map(json.loads, lines)
        return [JobEvent(**answer) for answer in answers if "id" in answer]

    def close(self) -> None:
        """End the server and every remaining job."""
        if self._server is not None:
            self._server.close()
            self._server = None
