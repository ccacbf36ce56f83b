"""Isolate and supervise model-written code: a separate process, started by `running.py`.

It receives two file descriptors: a file with the job as JSON, and a pipe for its reports. It enters its own namespaces
if the job says so, forks the program with its limits set, watches time and memory, and kills all remaining processes.
It is the reaper of all of them (PR_SET_CHILD_SUBREAPER, or process 1 of a namespace), so none escapes by losing its
parent. It runs without site-packages, so it imports only the standard library and `walls.py`.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

from rlhf_cli.services.sandbox import walls

if TYPE_CHECKING:
    from rlhf_cli.services.sandbox.running import SandboxJob

Report = Callable[[dict[str, object]], None]

# `exit()` and `quit()` come from `site`, which -S skips to hide site-packages.
_BOOT = (
    "import builtins,_sitebuiltins as s\n"
    "builtins.exit=builtins.quit=s.Quitter('exit','Ctrl-D')\n"
    "__file__='main.py'\n"
    "del builtins,s\n"
    "exec(compile(open('main.py','rb').read(),'main.py','exec'))\n"
)
# -s -P: no modules of the user or of this folder; -B: no .pyc files.
_OPTIONS = ["-S", "-s", "-P", "-B", "-X", "utf8", "-c"]


def main(job_file: int, report_pipe: int) -> int:
    """Run one job and return the exit code.

    Errors here are reported as failures of the sandbox, never as the program's result.
    """
    for descriptor in (job_file, report_pipe):
        os.set_inheritable(descriptor, False)

    def report(event: dict[str, object]) -> None:
        os.write(report_pipe, json.dumps(event).encode() + b"\n")

    try:
        walls.prctl(walls.DEATH_SIGNAL, signal.SIGKILL)
        with os.fdopen(job_file, "rb") as file:
            job: SandboxJob = json.load(file)
        if job["mode"] == "namespaces":
            return _in_namespaces(job, report)
        _supervise(job, report)
    except Exception as error:
        return _failed(error, report)
    return 0


def _failed(error: Exception, report: Report) -> int:
    report({"failed": f"{type(error).__name__}: {error}"})
    return 1


def _in_namespaces(job: SandboxJob, report: Report) -> int:
    """Isolate as bubblewrap does, for machines that lack it."""
    walls.unshare_all()
    init = os.fork()
    if init:
        _, status = os.waitpid(init, 0)
        return os.waitstatus_to_exitcode(status) & 0xFF
    code = 1
    try:
        walls.prctl(walls.DEATH_SIGNAL, signal.SIGKILL)
        walls.new_root(job["root"], job["visible"], job["max_file_bytes"])
        _supervise(job, report)
        code = 0
    except Exception as error:
        _failed(error, report)
    finally:
        os._exit(code)  # process 1 of the namespace: when it ends, the kernel kills all others in it


def _supervise(job: SandboxJob, report: Report) -> None:
    with open("main.py", "wb") as file:
        file.write(job["source"].encode("utf-8", "replace"))
    confinement = _Confinement(job)
    walls.prctl(walls.SUBREAPER, 1)
    walls.prctl(walls.DUMPABLE, 0)  # the program can neither trace us nor open our descriptors through /proc
    # Set again, because testing another user's rights cleared it. In a namespace everything ends with this process;
    # without one it has to survive in order to kill what the program started.
    walls.prctl(walls.DEATH_SIGNAL, signal.SIGKILL if job["mode"] != "limits" else signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD, signal.SIGTERM])
    reader, writer = os.pipe()
    guard = os.getpid()
    program = os.fork()
    if program == 0:
        _become_program(job, confinement, writer, guard)
    started = time.monotonic()
    os.close(writer)
    with os.fdopen(reader) as pipe:
        trouble = pipe.read()  # ends when exec closes the program's end of the pipe
    if trouble:
        raise RuntimeError(trouble)
    report({"in_force": confinement.in_force})
    brood = Brood()
    reason = brood.watch(
        program,
        until=started + job["timeout_s"],
        memory_bytes=job["memory_bytes"],
        max_processes=job["max_processes"],
    )
    brood.end()
    report({"returncode": os.waitstatus_to_exitcode(brood.status(program)), "killed_reason": reason})


def _become_program(job: SandboxJob, confinement: _Confinement, trouble: int, guard: int) -> NoReturn:
    try:
        confinement.enter()
        # With limits alone there is no namespace that ends with the guard, and a sleeping program hits no limit. The
        # change of user has cleared the death signal.
        walls.prctl(walls.DEATH_SIGNAL, signal.SIGKILL)
        if os.getppid() != guard:
            os._exit(1)
        os.execve(job["python"], [job["python"], *_OPTIONS, _BOOT], job["environment"])
    except BaseException as error:
        os.write(trouble, f"{type(error).__name__}: {error}".encode())
    os._exit(1)


class _Confinement:
    """The limits that the program's process sets on itself before it starts; `in_force` says which apply here."""

    def __init__(self, job: SandboxJob) -> None:
        walled = job["mode"] != "limits"
        self._root = os.geteuid() == 0
        self._user: int | None = None
        if self._root and _can_become(job["user"], job["python"]):
            self._user = job["user"]
            os.chown(".", job["user"], job["user"])
        self._filter = None if walled else walls.socket_filter()
        cpu_s = math.ceil(job["timeout_s"]) + 1
        self._limits = {
            resource.RLIMIT_CORE: (0, 0),
            resource.RLIMIT_CPU: (cpu_s, cpu_s + 1),
            resource.RLIMIT_AS: (job["memory_bytes"],) * 2,
            resource.RLIMIT_FSIZE: (job["max_file_bytes"],) * 2,
            resource.RLIMIT_NOFILE: (64, 64),
            resource.RLIMIT_NPROC: (job["max_processes"],) * 2,
        }
        self.in_force = {
            "no_network": walled or self._filter is not None,
            "environment_hidden": walled
            or self._root,  # the parent's environment in /proc: root's is closed to processes without root's rights
            "other_user": self._user is not None,
            "process_limit": not self._root or self._user is not None,  # the kernel does not count root's processes
        }

    def enter(self) -> None:
        os.setsid()
        for which, (soft, hard) in self._limits.items():
            ceiling = resource.getrlimit(which)[1]
            if ceiling != resource.RLIM_INFINITY:
                soft, hard = min(soft, ceiling), min(hard, ceiling)
            resource.setrlimit(which, (soft, hard))
        if self._user is not None:
            os.setgroups([])
            os.setresgid(self._user, self._user, self._user)
            os.setresuid(self._user, self._user, self._user)
        elif self._root:
            walls.prctl(walls.SECURE_BITS, 0b11)  # still root, but exec no longer grants root's rights
        walls.prctl(walls.AMBIENT, 4)  # capabilities that would survive exec
        walls.prctl(walls.NO_NEW_PRIVILEGES, 1)
        if self._filter is not None:
            walls.install_filter(self._filter)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])


def _can_become(user: int, python: str) -> bool:
    """Return whether that user could run this interpreter, which may be in a folder open to root only."""
    try:
        os.setgroups([])
        os.setegid(user)
        os.seteuid(user)
    except OSError:  # a container without such a user, or that forbids the change
        os.setegid(0)
        return False
    try:
        return os.access(python, os.X_OK | os.R_OK, effective_ids=True)
    finally:
        os.seteuid(0)
        os.setegid(0)


TICK_S = 0.02


class Brood:
    """All descendants of this process, watched and ended together."""

    def __init__(self) -> None:
        self._ended: dict[int, int] = {}

    def watch(self, program: int, *, until: float, memory_bytes: int, max_processes: int) -> str | None:
        """Wait for `program` to end and return None, or return the reason to end it.

        The reasons are `time`, `memory`, `processes`, and `launcher` if this process receives SIGTERM, which means that
        the result is no longer wanted. `until` is in seconds of time.monotonic; memory and processes count all
        descendants together. The caller must block SIGCHLD and SIGTERM, because this function waits for them.
        """
        while True:
            self.reap()
            if program in self._ended:
                return None
            left = until - time.monotonic()
            if left <= 0:
                return "time"
            living = descendants()
            if len(living) > max_processes:
                return "processes"
            if sum(_resident_bytes(pid) for pid in living) > memory_bytes:
                return "memory"
            news = signal.sigtimedwait([signal.SIGCHLD, signal.SIGTERM], min(left, TICK_S))
            if news is not None and news.si_signo == signal.SIGTERM:
                return "launcher"

    def status(self, pid: int) -> int:
        """Return the wait status of `pid`, or SIGKILL if its end was not observed."""
        return self._ended.get(pid, signal.SIGKILL)

    def reap(self) -> bool:
        """Reap ended children; return False if there are no children left."""
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return True
                self._ended[pid] = status
        except ChildProcessError:
            return False

    def end(self) -> None:
        """Stop, then kill all descendants, and repeat until all are gone. Raises RuntimeError if some survive."""
        until = time.monotonic() + 5
        while self.reap():
            # Stop all before killing any, because a fork bomb replaces each process that is killed.
            stopped: set[int] = set()
            while new := set(descendants()) - stopped:
                _signal(new, signal.SIGSTOP)
                stopped |= new
            _signal(stopped, signal.SIGKILL)
            if time.monotonic() > until:
                raise RuntimeError(f"processes that will not die: {sorted(stopped)}")
            time.sleep(0.001)


def descendants() -> list[int]:
    """Return the ids of all living processes below this one."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError), open(f"/proc/{name}/stat", "rb") as file:
                state, parent = file.read().rpartition(b")")[2].split()[:2]
                if state not in (b"Z", b"X"):
                    children.setdefault(int(parent), []).append(int(name))
    living: list[int] = []
    todo = [os.getpid()]
    while todo:
        below = children.get(todo.pop(), [])
        living += below
        todo += below
    return living


def _signal(pids: set[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _resident_bytes(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except (FileNotFoundError, ProcessLookupError, IndexError):
        return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
