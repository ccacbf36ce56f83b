"""Run model-written Python in a separate process, limited, watched, and isolated as well as this machine allows.

`docs/how-to/rewards.md` describes what the sandbox protects from; `protections()` returns what applies on this machine.
The isolation is set up by `launcher.py` in the new process. Linux only.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import logging
import os
import secrets
import selectors
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal, TypeAlias, TypedDict, cast, get_args

from rlhf_cli.errors import RewardError

Mode: TypeAlias = Literal["bubblewrap", "namespaces", "limits"]
Isolation: TypeAlias = Literal["auto", "bubblewrap", "namespaces", "limits"]
_InForce: TypeAlias = dict[str, bool]  # protection -> whether it applies

OUTPUT_BYTES = 64 * 1024  # maximum bytes kept of stdout and of stderr: the first half and the last half

_GRACE_S = 15.0  # for startup and cleanup, beyond the program's own time
_PACKAGE = Path(__file__).resolve().parents[2]
_LAUNCHER_FILES = ("__init__", "services/__init__", "services/sandbox/__init__", "services/sandbox/launcher")
# All that a program sees of this machine besides the interpreter, read-only: no home, no project, no data.
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/nix/store", "/gnu/store")
PATH = "/usr/local/bin:/usr/bin:/bin"
PYTHONPATH = str(_PACKAGE.parent)
_PREFIX, _USERS = "rlhf-sandbox-", range(61184, 65520)
"""The folders, and systemd's range for dynamic users: one for each run, so the kernel counts its processes alone."""
_JUST_MADE_S = 10.0
_REMOVE = '(chmod -R u+rwx "$0"; rm -rf -- "$0") >/dev/null 2>&1 &'


class SandboxJob(TypedDict):
    """A program, its limits, the paths it can see, its empty root folder, and the user it becomes if root starts it."""

    source: str
    timeout_s: float
    memory_bytes: int
    max_processes: int
    max_file_bytes: int
    mode: str
    root: str
    visible: list[str]
    user: int
    python: str
    environment: dict[str, str]


@dataclass(frozen=True)
class ProgramResult:
    """The result of a program."""

    returncode: int  # -N if signal N ended it
    stdout: str
    stderr: str
    timed_out: bool
    killed_reason: str | None
    """Why we or a limit ended it: time, memory, processes (all together), cpu, launcher (it was killed); else None."""


def run_code(
    source: str,  # it sees the standard library, an empty folder and an empty stdin
    *,
    timeout_s: float = 5.0,  # wall time from its start; a CPU limit one second above also applies
    memory_mb: int = 512,  # address space of each process, and resident memory of all processes together
    max_processes: int = 16,  # concurrent processes and threads
    max_file_mb: int = 16,  # largest file; with namespaces also the size of the writable folder
    isolation: Isolation = "auto",
) -> ProgramResult:
    """Run `source` as a Python program and wait for it; all processes that it started are gone on return.

    `auto` takes the strongest isolation that works here: bubblewrap, else namespaces, else limits, whose gaps are
    logged; any other is required to work. Raise RewardError if the sandbox fails; errors of the program never raise.
    """
    for name, value in (("timeout_s", timeout_s), ("max_processes", max_processes), ("max_file_mb", max_file_mb)):
        if value <= 0:
            raise RewardError("a limit is not positive", where=f"args.{name}", got=value, expected="more than 0")
    if memory_mb < 64:
        raise RewardError("Python needs more memory", where="args.memory_mb", got=memory_mb, expected="64 or more")
    limits = {"memory_mb": memory_mb, "max_processes": max_processes, "max_file_mb": max_file_mb}
    outcome, _ = _run(_pick(isolation)[0], source, timeout_s, limits)
    return outcome


def protections(isolation: Isolation = "auto") -> _InForce:
    """Return which protections apply here beside the limits. Raise RewardError if no mode works."""
    mode, in_force = _pick(isolation)
    walled = dict.fromkeys(("namespaces", "disk_limit", "sure_end_of_processes"), mode != "limits")
    return {"bubblewrap": mode == "bubblewrap", **walled, **in_force}


def _pick(isolation: Isolation) -> tuple[Mode, _InForce]:
    """Return the mode, and the protections that the launcher found in force; log what `auto` lacks."""
    if isolation not in get_args(Isolation):
        expected = " | ".join(get_args(Isolation))
        raise RewardError("unknown isolation", where="args.isolation", got=isolation, expected=expected)
    bwrap, troubles = shutil.which("bwrap"), list[str]()
    for mode in get_args(Mode) if isolation == "auto" else (isolation,):
        in_force, trouble = _probe(mode, bwrap)
        if trouble is None:
            if troubles and mode == "limits":
                _warn_once(tuple(in_force.items()), "; ".join(troubles))
            return mode, in_force
        troubles.append(f"{mode}: {trouble}")
    what, expected = f"isolation: {isolation} does not work here", "what docs/how-to/rewards.md says a machine needs"
    raise RewardError(what, where="args.isolation", got="\n".join(troubles), expected=expected)


@functools.cache
def _warn_once(found: tuple[tuple[str, bool], ...], troubles: str) -> None:
    """Log what programs with limits only can do here, by what the launcher `found` in force; `troubles` say why."""
    in_force = dict(found)
    gaps = {
        "files_hidden": f"it can read files {'open to all' if in_force['other_user'] else 'of the user rlhf runs as'}",
        "environment_hidden": "it can read the environment of that user's processes",
        "no_network": "it can reach the network",
        "process_limit": "its processes are counted only from time to time",
    }
    lacking = [*(gap for name, gap in gaps.items() if not in_force[name]), "its files can fill the disk"]
    only = f"model-written code runs with limits only: {', '.join(lacking)}"
    logging.getLogger("rlhf").warning(f"{only} (docs/how-to/rewards.md). {troubles}")


@functools.cache
def _probe(mode: Mode, bwrap: str | None) -> tuple[_InForce, str | None]:
    """Return (what is in force, None), or ({}, why it does not work)."""
    if mode == "bubblewrap" and bwrap is None:
        return {}, "bwrap is not installed"
    try:
        limits = {"memory_mb": 256, "max_processes": 4, "max_file_mb": 1}
        outcome, in_force = _run(mode, "print(1)", 10.0, limits)
    except (RewardError, OSError) as error:
        return {}, str(error.got if isinstance(error, RewardError) else error)
    if outcome.stdout.strip() != "1":
        return {}, f"a first program failed: exit code {outcome.returncode}, {outcome.stderr[-300:].strip()}"
    return in_force, None


def _run(mode: Mode, source: str, timeout_s: float, limits: dict[str, int]) -> tuple[ProgramResult, _InForce]:
    _clear_left()
    with (
        tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True) as folder,
        _locked(folder),
        tempfile.TemporaryFile() as job_file,
        tempfile.TemporaryFile() as reports,
    ):
        home = folder if mode == "limits" else "/tmp"
        environment = {"PATH": PATH, "LANG": "C.UTF-8", "HOME": home, "TMPDIR": home, "PYTHONHASHSEED": "0"}
        job: SandboxJob = {
            "source": source,
            "timeout_s": timeout_s,
            "memory_bytes": limits["memory_mb"] << 20,
            "max_processes": limits["max_processes"],
            "max_file_bytes": limits["max_file_mb"] << 20,
            "mode": mode,
            "root": folder,
            "visible": visible(),
            "user": secrets.choice(_USERS),
            "python": interpreter(),
            "environment": environment,
        }
        job_file.write(json.dumps(job).encode())
        job_file.seek(0)
        descriptors = (job_file.fileno(), reports.fileno())
        try:
            process = subprocess.Popen(
                command(mode, job, *descriptors),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=descriptors,
                start_new_session=True,
                cwd=folder,
                env={"PYTHONPATH": PYTHONPATH, "PATH": PATH, "LANG": "C.UTF-8"},
            )
            return _listen(process, reports, timeout_s + _GRACE_S)
        finally:
            os.chmod(folder, 0o700)  # the program may have closed it
            if set(os.listdir(folder)) - {"main.py"}:  # another process removes it, which can take minutes
                _remove(folder)


def _remove(folder: str) -> None:
    os.rename(folder, left := f"{folder}-left")
    subprocess.run(["sh", "-c", _REMOVE, left], start_new_session=True)


@contextlib.contextmanager
def _locked(folder: str) -> Iterator[bool]:
    """Lock a folder while the context is open, and yield whether no living process had locked it."""
    descriptor, is_free = os.open(folder, os.O_DIRECTORY | os.O_NOFOLLOW), True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        is_free = False  # or this file system has no locks, and nobody knows
    try:
        yield is_free
    finally:
        os.close(descriptor)


@functools.cache
def _clear_left() -> None:
    """Remove the folders of this user whose process was killed, once per process."""
    ours = {os.geteuid(), *(_USERS if os.geteuid() == 0 else ())}
    for place in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            found = place.lstat()
            if found.st_uid in ours and time.time() - found.st_ctime > _JUST_MADE_S:  # else it may not be locked yet
                with _locked(str(place)) as is_left:
                    if is_left:
                        _remove(str(place))


def _listen(process: subprocess.Popen[bytes], reports: IO[bytes], seconds: float) -> tuple[ProgramResult, _InForce]:
    out, err = _Capped(), _Capped()
    until = time.monotonic() + seconds
    with process, selectors.DefaultSelector() as selector:
        try:
            for stream, kept in ((process.stdout, out), (process.stderr, err)):
                selector.register(cast(IO[bytes], stream), selectors.EVENT_READ, kept)
            while selector.get_map() and (left := until - time.monotonic()) > 0:
                for key, _ in selector.select(left):
                    data = os.read(key.fd, 1 << 16)
                    key.data.add(data)
                    if not data:
                        selector.unregister(key.fileobj)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # normally it has already ended
    facts: dict[str, Any] = {}
    reports.seek(0)
    for line in reports:
        facts |= json.loads(line)
    if "failed" in facts or "in_force" not in facts:
        got = facts.get("failed") or err.text()[-500:].strip() or f"its launcher ended with {process.returncode}"
        what, expected = "the sandbox for model-written code failed", "a sandbox that can start a program"
        advice = "docs/how-to/rewards.md says what a machine has to allow"
        raise RewardError(what, got=got, expected=expected, advice=advice)
    reason = facts.get("killed_reason") if "returncode" in facts else "launcher"
    returncode = facts.get("returncode", -signal.SIGKILL)
    if returncode == -signal.SIGXCPU:
        reason = "cpu"
    return ProgramResult(returncode, out.text(), err.text(), reason in ("time", "cpu"), reason), facts["in_force"]


class _Capped:
    """A buffer that keeps the first and the last bytes it is given."""

    def __init__(self) -> None:
        self._kept, self._left_out = bytearray(), 0

    def add(self, data: bytes) -> None:
        self._kept += data
        surplus, half = max(0, len(self._kept) - OUTPUT_BYTES), OUTPUT_BYTES // 2
        self._left_out += surplus
        del self._kept[half : half + surplus]

    def text(self) -> str:
        half = OUTPUT_BYTES // 2 if self._left_out else len(self._kept)
        middle = f"\n... {self._left_out} bytes left out ...\n" if self._left_out else ""
        return self._kept[:half].decode("utf-8", "replace") + middle + self._kept[half:].decode("utf-8", "replace")


def command(mode: str, job: SandboxJob, *descriptors: int) -> list[str]:
    """Return the command line for a job; `descriptors` are file descriptors passed to the launcher."""
    options = "-S -s -P -B -X utf8 -m rlhf_cli.services.sandbox.launcher"
    launcher = [job["python"], *options.split(), *map(str, descriptors)]
    if mode != "bubblewrap":
        return launcher
    size = f"--perms 1777 --size {job['max_file_bytes']} --tmpfs"
    bwrap = shutil.which("bwrap") or "bwrap"
    words = [bwrap, *["--die-with-parent", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"]]
    if os.geteuid() == 0:  # stay root until the launcher changes to the other user
        words += ["--cap-drop", "ALL"]
        for right in ("SETUID", "SETGID", "SETPCAP", "CHOWN", "KILL"):
            words += ["--cap-add", f"CAP_{right}"]
    else:
        words += ["--unshare-user", "--uid", "65534", "--gid", "65534"]
    words += f"--dev /dev {size} /dev/shm --remount-ro /dev {size} /tmp --proc /proc".split()
    for path in [*job["visible"], *(str(_PACKAGE / f"{name}.py") for name in _LAUNCHER_FILES)]:
        for parent in reversed(Path(path).parents[:-1]):  # bwrap would create them accessible to itself only
            words += ["--perms", "755", "--dir", str(parent)]
        words += ["--symlink", os.readlink(path), path] if os.path.islink(path) else ["--ro-bind", path, path]
    return [*words, *["--remount-ro", "/", "--chdir", "/tmp", "--"], *launcher]


def interpreter() -> str:
    """Return the base interpreter of the virtual environment, which has no third-party packages."""
    return os.path.realpath(getattr(sys, "_base_executable", sys.executable))


def visible() -> list[str]:
    """Return the system's and the interpreter's folders, none inside another."""
    needed = [sys.base_prefix, sys.base_exec_prefix, os.path.dirname(interpreter()), sysconfig.get_path("stdlib")]
    paths = [path for path in (*_SYSTEM, "/etc/ld.so.cache", "/etc/localtime") if os.path.exists(path)]
    for path in sorted({os.path.realpath(path) for path in needed}):
        if not any(path == other or path.startswith(other + "/") for other in paths):
            paths.append(path)
    return paths
