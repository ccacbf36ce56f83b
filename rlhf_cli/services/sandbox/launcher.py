"""Isolate and supervise model-written code: a separate process, started by `running.py`.

It receives two file descriptors: of a file with the job as JSON, and of one for its reports. It enters its own
namespaces if the job says so, forks the program with its limits set, watches time and memory, and kills all remaining
processes. It is the reaper of all of them (PR_SET_CHILD_SUBREAPER, or process 1 of a namespace), so none escapes by
losing its parent. It runs without site-packages, so it imports only the standard library. Linux only.
"""

from __future__ import annotations

import contextlib
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
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NoReturn

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
_OPTIONS = ["-S", "-s", "-P", "-B", "-X", "utf8", "-c"]  # -s -P: no modules of the user or this folder; -B: no .pyc
TICK_S = 0.02

# Of system calls that Python does not wrap
DEATH_SIGNAL, DUMPABLE, SECURE_BITS, SUBREAPER, NO_NEW_PRIVILEGES, AMBIENT = 1, 4, 28, 36, 38, 47
_SECCOMP = 22
_NEW_NS, _NEW_UTS, _NEW_IPC = 0x00020000, 0x04000000, 0x08000000
_NEW_USER, _NEW_PID, _NEW_NET = 0x10000000, 0x20000000, 0x40000000
_READ_ONLY, _NO_SUID, _NO_DEV, _NO_EXEC, _REMOUNT = 1, 2, 4, 8, 32
_BIND, _MOVE, _RECURSIVE, _PRIVATE = 4096, 8192, 16384, 1 << 18
_NOBODY = 65534
_libc = ctypes.CDLL(None, use_errno=True)

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_RIGHTS = ((1 << 13) - 1, 1 << 13, 1 << 14)
"""Landlock's rights to use, make and remove files; since version 2 to move and since 3 to truncate them."""
_RUN, _WRITE, _READ, _LIST = 1, 2, 4, 8
_DEVICES = {f"/dev/{name}": _READ for name in ("zero", "full", "random", "urandom")} | {"/dev/null": _READ | _WRITE}


def main(job_file: int, report_file: int) -> int:
    """Run one job; errors here are reported as failures of the sandbox, never as the program's result."""
    for descriptor in (job_file, report_file):
        os.set_inheritable(descriptor, False)

    def report(event: dict[str, object]) -> None:
        os.write(report_file, json.dumps(event).encode() + b"\n")

    try:
        prctl(DEATH_SIGNAL, signal.SIGKILL)
        with os.fdopen(job_file, "rb") as file:
            job: SandboxJob = json.load(file)
        if job["mode"] == "namespaces":  # as bubblewrap isolates, for machines that lack it
            unshare_all()
            if init := os.fork():  # process 1 of the namespace: when it ends, the kernel kills all others in it
                return os.waitstatus_to_exitcode(os.waitpid(init, 0)[1])
            prctl(DEATH_SIGNAL, signal.SIGKILL)
            new_root(job["root"], job["visible"], job["max_file_bytes"])
        _supervise(job, report)
    except Exception as error:
        report({"failed": f"{type(error).__name__}: {error}"})
        return 1
    return 0


def _supervise(job: SandboxJob, report: Report) -> None:
    with open("main.py", "wb") as file:
        file.write(job["source"].encode("utf-8", "replace"))
    confinement = _Confinement(job)
    prctl(SUBREAPER, 1)
    prctl(DUMPABLE, 0)  # the program can neither trace us nor open our descriptors through /proc
    # Set again, because testing another user's rights cleared it. In a namespace everything ends with this process;
    # without one it has to survive in order to kill what the program started.
    prctl(DEATH_SIGNAL, signal.SIGKILL if job["mode"] != "limits" else signal.SIGTERM)
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
    limits = {"memory_bytes": job["memory_bytes"], "max_processes": job["max_processes"]}
    reason = brood.watch(program, until=started + job["timeout_s"], **limits)
    brood.end()
    status = brood.ended.get(program, signal.SIGKILL)  # its end may not have been observed
    report({"returncode": os.waitstatus_to_exitcode(status), "killed_reason": reason})


def _become_program(job: SandboxJob, confinement: _Confinement, trouble: int, guard: int) -> NoReturn:
    try:
        confinement.enter()
        # With limits alone there is no namespace that ends with the guard, and a sleeping program hits no limit. The
        # change of user has cleared the death signal.
        prctl(DEATH_SIGNAL, signal.SIGKILL)
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
        self._filter = None if walled else socket_filter()
        self._visible = job["visible"]
        self._landlock = 0 if walled else _libc.syscall(_CREATE_RULESET, None, 0, 1)
        fenced = walled or self._landlock >= 1
        is_open = self._root and self._user is None and not fenced
        if is_open and os.access("/proc/sys/kernel/hostname", os.W_OK):
            raise RuntimeError("as root without Landlock the program could change the kernel's settings")
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
            "environment_hidden": fenced or self._root,  # in /proc, root's is closed to processes without root's rights
            "other_user": self._user is not None,
            "files_hidden": fenced,
            "process_limit": not self._root or self._user is not None,  # the kernel does not count root's processes
        }

    def enter(self) -> None:
        os.setsid()
        rules = file_rules(self._visible, self._landlock) if self._landlock >= 1 else None
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
            prctl(SECURE_BITS, 0b11)  # still root, but exec no longer grants root's rights
        prctl(AMBIENT, 4)  # capabilities that would survive exec
        prctl(NO_NEW_PRIVILEGES, 1)
        if rules is not None and _libc.syscall(_RESTRICT_SELF, rules, 0):
            _fail("landlock_restrict_self")
        if self._filter is not None:
            # For this process and its children, permanently; NO_NEW_PRIVILEGES, set above, allows it.
            code = ctypes.create_string_buffer(self._filter, len(self._filter))
            header = struct.pack("HxxxxxxP", len(self._filter) // 8, ctypes.addressof(code))
            prctl(_SECCOMP, 2, ctypes.c_char_p(header))
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


class Brood:
    """All descendants of this process, watched and ended together."""

    def __init__(self) -> None:
        self.ended: dict[int, int] = {}  # process -> wait status

    def watch(self, program: int, *, until: float, memory_bytes: int, max_processes: int) -> str | None:
        """Wait for `program` to end and return None, or return the reason to end it.

        The reasons are `time`, `memory`, `processes`, and `launcher` if this process receives SIGTERM, which means that
        the result is no longer wanted. `until` is in seconds of time.monotonic; memory and processes count all
        descendants together. The caller must block SIGCHLD and SIGTERM, because this function waits for them.
        """
        while True:
            self.reap()
            if program in self.ended:
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

    def reap(self) -> bool:
        """Reap ended children; return False if there are no children left."""
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return True
                self.ended[pid] = status
        except ChildProcessError:
            return False

    def end(self) -> None:
        """Stop, then kill all descendants, and repeat until all are gone. Raise RuntimeError if some survive."""
        until = time.monotonic() + 5
        while self.reap():
            stopped: set[int] = set()  # all, before any is killed: a fork bomb replaces each that is
            while new := set(descendants()) - stopped:
                _signal(new, signal.SIGSTOP)
                stopped |= new
            _signal(stopped, signal.SIGKILL)
            if time.monotonic() > until:
                raise RuntimeError(f"these processes cannot be killed: {sorted(stopped)}")
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


def prctl(option: int, *arguments: int | ctypes.c_char_p) -> None:
    """Make the system call prctl. Raise OSError."""
    padded = [ctypes.c_ulong(word) if isinstance(word, int) else word for word in (*arguments, 0, 0, 0)]
    if _libc.prctl(option, *padded):
        _fail(f"prctl {option}")


def unshare_all() -> None:
    """Give this process its own namespaces (processes: from the next fork on). Raise OSError.

    Any user but root is mapped to 65534 there, and so loses all rights over the namespaces with the next exec.
    """
    spaces = _NEW_NS | _NEW_PID | _NEW_NET | _NEW_IPC | _NEW_UTS
    user, group = os.geteuid(), os.getegid()
    if _libc.unshare(spaces if user == 0 else spaces | _NEW_USER):
        _fail("unshare")
    if user != 0:
        maps = {"setgroups": "deny", "uid_map": f"{_NOBODY} {user} 1", "gid_map": f"{_NOBODY} {group} 1"}
        for name, text in maps.items():
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)


def new_root(root: str, visible: Sequence[str], scratch_bytes: int) -> None:
    """Switch to a root with a /tmp of `scratch_bytes`, read-only `visible`, devices and /proc, built in `root`.

    The caller must be the first process of a process namespace. Raise OSError.
    """
    _mount(None, "/", None, _RECURSIVE | _PRIVATE)
    _mount("tmpfs", root, "tmpfs", _NO_SUID | _NO_DEV, "size=1m,mode=755")
    os.mkdir(f"{root}/tmp")
    _mount("tmpfs", f"{root}/tmp", "tmpfs", _NO_SUID | _NO_DEV, f"size={scratch_bytes},mode=1777")
    for path in visible:
        target = root + path
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if os.path.islink(path):
            os.symlink(os.readlink(path), target)
        else:
            _bind(path, target, _NO_DEV)
    os.mkdir(f"{root}/dev")
    for device in ("null", "zero", "full", "random", "urandom"):
        _bind(f"/dev/{device}", f"{root}/dev/{device}", 0)
    os.symlink("/tmp", f"{root}/dev/shm")
    os.mkdir(f"{root}/proc")
    _mount("proc", f"{root}/proc", "proc", _NO_SUID | _NO_DEV | _NO_EXEC)
    _mount(None, root, None, _REMOUNT | _BIND | _READ_ONLY | _NO_SUID | _NO_DEV)
    os.chdir(root)
    _mount(root, "/", None, _MOVE)
    os.chroot(".")
    os.chdir("/tmp")


def _bind(path: str, target: str, flags: int) -> None:
    if os.path.isdir(path):
        os.makedirs(target, exist_ok=True)
    else:
        open(target, "w").close()
    _mount(path, target, None, _BIND | _RECURSIVE)
    # A user namespace may not drop a mount's flags. Those of access times are kept by a remount that names none.
    kept = os.statvfs(path).f_flag & (_NO_DEV | _NO_EXEC)
    _mount(None, target, None, _REMOUNT | _BIND | _READ_ONLY | _NO_SUID | flags | kept)


def file_rules(visible: Sequence[str], version: int) -> int:
    """Return Landlock's rules: this process reads `visible` and itself in /proc, and writes into this folder only."""
    rights = sum(_RIGHTS[:version])
    rules: int = _libc.syscall(_CREATE_RULESET, struct.pack("Q", rights), 8, 0)
    reads = dict.fromkeys((*visible, "/proc/self"), _RUN | _READ | _LIST)
    for place, allowed in ({".": rights, "/dev/shm": rights} | reads | _DEVICES).items():
        with contextlib.suppress(FileNotFoundError):
            below = os.open(place, os.O_PATH | os.O_CLOEXEC)
            allowed &= ~0 if os.path.isdir(place) else _RUN | _WRITE | _READ
            if _libc.syscall(_ADD_RULE, rules, 1, struct.pack("=Qi", allowed, below), 0):
                _fail(f"landlock_add_rule {place}")
            os.close(below)
    return rules


def socket_filter() -> bytes | None:
    """Return a seccomp program that refuses all but Unix sockets, None on an unknown architecture."""
    known = {"x86_64": (0xC000003E, 41), "aarch64": (0xC00000B7, 198)}
    if platform.machine() not in known:
        return None
    architecture, socket_call = known[platform.machine()]
    allow, refuse, kill = 0x7FFF0000, 0x00050001, 0x80000000  # refuse: the call fails with EPERM
    load, equal, at_least, give = 0x20, 0x15, 0x35, 0x06
    program = [  # (operation, lines to skip if true, if false, operand)
        (load, 0, 0, 4),  # the architecture
        (equal, 1, 0, architecture),
        (give, 0, 0, kill),
        (load, 0, 0, 0),  # the system call
        (at_least, 5, 0, 0x40000000),  # x32: the same calls under other numbers
        (equal, 4, 0, 425),  # io_uring_setup: a ring can open sockets past this filter
        (equal, 0, 2, socket_call),
        (load, 0, 0, 16),  # its first argument, the family
        (equal, 0, 1, 1),  # AF_UNIX
        (give, 0, 0, allow),
        (give, 0, 0, refuse),
    ]
    return b"".join(struct.pack("HBBI", *line) for line in program)


def _mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    texts = [None if text is None else os.fsencode(text) for text in (source, target, kind, data)]
    if _libc.mount(texts[0], texts[1], texts[2], ctypes.c_ulong(flags), texts[3]):
        _fail(f"mount {target}")


def _fail(call: str) -> NoReturn:
    number = ctypes.get_errno()
    raise OSError(number, f"{call}: {os.strerror(number)}")


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
