"""What stands between this process and model-written code: a script of its own, run by `python -c`.

`rewards/sandbox.py` starts it with two inherited descriptors: a file with the job as JSON, a pipe for what happened. It
closes itself in (namespaces, when told to), forks the program with its limits set, watches time and memory, and ends
every process that is left. It runs isolated and without site-packages, so it imports nothing of the project.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import platform
import resource
import signal
import struct
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn

NEW_NS, NEW_UTS, NEW_IPC = 0x00020000, 0x04000000, 0x08000000
NEW_USER, NEW_PID, NEW_NET = 0x10000000, 0x20000000, 0x40000000
READ_ONLY, NO_SUID, NO_DEV, REMOUNT, BIND, MOVE, RECURSIVE, PRIVATE = 1, 2, 4, 32, 4096, 8192, 16384, 1 << 18
DEATH_SIGNAL, DUMPABLE, SECCOMP, SUBREAPER, NO_NEW_PRIVILEGES = 1, 4, 22, 36, 38
NOBODY = 65534
TICK_S = 0.02

# The interpreter comes without `site`, so as not to see site-packages; `exit()` and friends are site's doing.
BOOT = (
    "import builtins,_sitebuiltins as s\n"
    "builtins.exit=builtins.quit=s.Quitter('exit','Ctrl-D')\n"
    "__file__='main.py'\n"
    "del builtins,s\n"
    "exec(compile(open('main.py','rb').read(),'main.py','exec'))\n"
)

_libc = ctypes.CDLL(None, use_errno=True)


def main(job_file: int, report_pipe: int) -> int:
    for descriptor in (job_file, report_pipe):
        os.set_inheritable(descriptor, False)
    report = _reporter(report_pipe)
    try:
        _prctl(DEATH_SIGNAL, signal.SIGKILL)
        with os.fdopen(job_file, "rb") as file:
            job: dict[str, Any] = json.load(file)
        if job["mode"] == "namespaces":
            return _in_namespaces(job, report)
        if job["mode"] == "bubblewrap":
            os.chdir("/tmp")
        return _supervise(job, report)
    except Exception as error:  # whatever goes wrong here is the sandbox's failure, never the program's score
        report({"failed": f"{type(error).__name__}: {error}"})
        return 1


def _in_namespaces(job: dict[str, Any], report: Callable[[dict[str, Any]], None]) -> int:
    """A process tree, a network, a root of its own: what bubblewrap does, for machines that lack it."""
    if os.geteuid() == 0:
        # Root needs no user namespace, and is better off without: the program becomes another user for real.
        _unshare(NEW_NS | NEW_PID | NEW_NET | NEW_IPC | NEW_UTS)
    else:
        user, group = os.geteuid(), os.getegid()
        _unshare(NEW_USER | NEW_NS | NEW_PID | NEW_NET | NEW_IPC | NEW_UTS)
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{NOBODY} {user} 1"),
            ("gid_map", f"{NOBODY} {group} 1"),
        ):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    init = os.fork()
    if init:
        _, status = os.waitpid(init, 0)
        return os.waitstatus_to_exitcode(status) & 0xFF
    code = 1
    try:
        _prctl(DEATH_SIGNAL, signal.SIGKILL)
        _new_root(job)
        code = _supervise(job, report)
    except Exception as error:
        report({"failed": f"{type(error).__name__}: {error}"})
    finally:
        os._exit(code)  # process 1 of the namespace: with it the kernel kills all the others


def _new_root(job: dict[str, Any]) -> None:
    root = job["root"]
    _mount(None, "/", None, RECURSIVE | PRIVATE)
    _mount("tmpfs", root, "tmpfs", NO_SUID | NO_DEV, "size=1m,mode=755")
    for path in job["visible"]:
        target = root + path
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if os.path.islink(path):
            os.symlink(os.readlink(path), target)
        else:
            _bind(path, target, NO_DEV)
    for device in ("null", "zero", "full", "random", "urandom"):
        os.makedirs(f"{root}/dev", exist_ok=True)
        _bind(f"/dev/{device}", f"{root}/dev/{device}", 0)
    os.symlink("/tmp", f"{root}/dev/shm")
    os.mkdir(f"{root}/tmp")
    _mount("tmpfs", f"{root}/tmp", "tmpfs", NO_SUID | NO_DEV, f"size={job['max_file_bytes']},mode=1777")
    os.mkdir(f"{root}/proc")
    _mount("proc", f"{root}/proc", "proc", NO_SUID | NO_DEV | 8)
    _mount(None, root, None, REMOUNT | BIND | READ_ONLY | NO_SUID | NO_DEV)
    os.chdir(root)
    _mount(root, "/", None, MOVE)
    os.chroot(".")
    os.chdir("/tmp")


def _bind(path: str, target: str, flags: int) -> None:
    if os.path.isdir(path):
        os.makedirs(target, exist_ok=True)
    else:
        open(target, "w").close()
    _mount(path, target, None, BIND | RECURSIVE)
    # In a user namespace the flags a mount has already may not be dropped; relatime has another number as ST_ than MS_.
    has = os.statvfs(path).f_flag
    kept = (has & (2 | 4 | 8 | 1024 | 2048)) | ((1 << 21) if has & 4096 else 0)
    _mount(None, target, None, REMOUNT | BIND | READ_ONLY | NO_SUID | flags | kept)


def _supervise(job: dict[str, Any], report: Callable[[dict[str, Any]], None]) -> int:
    _prctl(SUBREAPER, 1)
    _prctl(DUMPABLE, 0)  # so that the program cannot open our descriptors through /proc, nor trace us
    with open("main.py", "wb") as file:
        file.write(job["source"].encode("utf-8", "replace"))
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    confinement = Confinement(job)
    broken, told = os.pipe()
    program = os.fork()
    if program == 0:
        _become_program(job, confinement, told)
    os.close(told)
    started = time.monotonic()
    with os.fdopen(broken, "r") as pipe:
        trouble = pipe.read()  # ends when the program is executed, and its end of the pipe closed
    if trouble:
        raise RuntimeError(trouble)
    report({"started": True, "in_force": confinement.in_force})
    status, reason = _watch(program, started + job["timeout_s"], job["memory_bytes"])
    left = _end_all()
    if status is None:
        status = _reaped.get(program, signal.SIGKILL)
    report({"returncode": os.waitstatus_to_exitcode(status), "killed_reason": reason, "left_behind": left})
    return 0


class Confinement:
    """What the program's process takes on before it starts. `in_force` says what of it works here."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.user = None
        if os.geteuid() == 0 and _can_become(job["user"], job["python"]):
            self.user = job["user"]
            os.chown(".", self.user, self.user)
        self.filter = socket_filter() if job["mode"] == "limits" else None
        namespaced = job["mode"] != "limits"
        self.in_force = {
            "other_user": self.user is not None,
            "no_network": namespaced or self.filter is not None,
            # The kernel does not count processes for root.
            "process_count": os.geteuid() != 0 or self.user is not None,
        }

    def enter(self, job: dict[str, Any]) -> None:
        os.setsid()
        cpu_s = math.ceil(job["timeout_s"]) + 1
        limits = {
            resource.RLIMIT_CORE: 0,
            resource.RLIMIT_CPU: cpu_s,
            resource.RLIMIT_AS: job["memory_bytes"],
            resource.RLIMIT_FSIZE: job["max_file_bytes"],
            resource.RLIMIT_NOFILE: 64,
            resource.RLIMIT_NPROC: job["max_processes"],
        }
        for which, limit in limits.items():
            hard = resource.getrlimit(which)[1]
            value = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
            resource.setrlimit(which, (value, value))
        if self.user is not None:
            os.setgroups([])
            os.setresgid(self.user, self.user, self.user)
            os.setresuid(self.user, self.user, self.user)
        _prctl(NO_NEW_PRIVILEGES, 1)
        if self.filter is not None:
            _install(self.filter)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])


def _become_program(job: dict[str, Any], confinement: Confinement, told: int) -> NoReturn:
    try:
        confinement.enter(job)
        # -S: no site-packages; -s -P: neither the user's nor this folder's modules; -B: no .pyc files.
        os.execve(
            job["python"], [job["python"], *["-S", "-s", "-P", "-B", "-X", "utf8", "-c"], BOOT], job["environment"]
        )
    except BaseException as error:
        os.write(told, f"{type(error).__name__}: {error}".encode())
    os._exit(1)


_reaped: dict[int, int] = {}


def _watch(program: int, deadline: float, memory_bytes: int) -> tuple[int | None, str | None]:
    """(exit status, why it was stopped): waits for the program, its time or its memory to end."""
    while True:
        _reap()
        if program in _reaped:
            return _reaped[program], None
        left = deadline - time.monotonic()
        if left <= 0:
            return None, "time"
        if sum(_resident_bytes(pid) for pid in _descendants()) > memory_bytes:
            return None, "memory"
        signal.sigtimedwait([signal.SIGCHLD], min(left, TICK_S))


def _reap() -> bool:
    """Collect what has ended; False when there is no child left."""
    try:
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return True
            _reaped[pid] = status
    except ChildProcessError:
        return False


def _end_all() -> int:
    """Stop, then kill every descendant, until there is none; how many there were beside the program."""
    seen: set[int] = set()
    until = time.monotonic() + 5
    while _reap() and time.monotonic() < until:
        # All are stopped before one is killed: a fork bomb fills the place of each that is killed.
        stopped: set[int] = set()
        while new := set(_descendants()) - stopped:
            for pid in new:
                _kill(pid, signal.SIGSTOP)
            stopped |= new
        for pid in stopped:
            _kill(pid, signal.SIGKILL)
        seen |= stopped
        time.sleep(0.001)
    return len(seen)


def _kill(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def _descendants() -> list[int]:
    """All living processes below this one. It is their reaper, so none gets away by losing its parent."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    state, parent = file.read().rpartition(b")")[2].split()[:2]
            except (FileNotFoundError, ProcessLookupError):
                continue
            if state not in (b"Z", b"X"):
                children.setdefault(int(parent), []).append(int(name))
            else:
                children.setdefault(int(parent), [])
    found: list[int] = []
    todo = [os.getpid()]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def _resident_bytes(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except (FileNotFoundError, ProcessLookupError, IndexError):
        return 0


def _can_become(user: int, python: str) -> bool:
    """Whether that user could run this interpreter: it may lie in a folder that only root may enter."""
    try:
        os.setegid(user)
        os.seteuid(user)
    except OSError:  # a container that has no such user
        return False
    try:
        return os.access(python, os.X_OK | os.R_OK, effective_ids=True)
    finally:
        os.seteuid(0)
        os.setegid(0)


def socket_filter() -> bytes | None:
    """A seccomp program that refuses every socket but Unix ones; None on a machine whose numbers are not known here."""
    known = {"x86_64": (0xC000003E, 41), "aarch64": (0xC00000B7, 198)}
    if platform.machine() not in known:
        return None
    architecture, socket_call = known[platform.machine()]
    allow, refuse, kill = 0x7FFF0000, 0x00050001, 0x80000000  # refuse = EPERM
    load, equal, greater_equal, give = 0x20, 0x15, 0x35, 0x06
    program = [
        (load, 0, 0, 4),  # the architecture
        (equal, 1, 0, architecture),
        (give, 0, 0, kill),
        (load, 0, 0, 0),  # the system call
        (greater_equal, 5, 0, 0x40000000),  # x32 has the same calls under other numbers
        (equal, 4, 0, 425),  # io_uring_setup: a ring can open sockets past this filter
        (equal, 0, 2, socket_call),
        (load, 0, 0, 16),  # its first argument, the family
        (equal, 0, 1, 1),  # AF_UNIX
        (give, 0, 0, allow),
        (give, 0, 0, refuse),
    ]
    return b"".join(struct.pack("HBBI", *line) for line in program)


def _install(program: bytes) -> None:
    code = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(code))
    _prctl(SECCOMP, 2, ctypes.c_char_p(header))


def _prctl(option: int, *arguments: Any) -> None:
    padded = [ctypes.c_ulong(one) if isinstance(one, int) else one for one in (*arguments, 0, 0, 0, 0)[:4]]
    if _libc.prctl(option, *padded):
        _fail(f"prctl {option}")


def _unshare(flags: int) -> None:
    if _libc.unshare(flags):
        _fail("unshare")


def _mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    texts = [None if text is None else os.fsencode(text) for text in (source, target, kind, data)]
    if _libc.mount(texts[0], texts[1], texts[2], ctypes.c_ulong(flags), texts[3]):
        _fail(f"mount {target}")


def _fail(what: str) -> NoReturn:
    number = ctypes.get_errno()
    raise OSError(number, f"{what}: {os.strerror(number)}")


def _reporter(pipe: int) -> Callable[[dict[str, Any]], None]:
    def report(event: dict[str, Any]) -> None:
        os.write(pipe, json.dumps(event).encode() + b"\n")

    return report


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
