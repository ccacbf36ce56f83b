"""Control this process: its streams, signals, exit, and state set for a while; tell it from all other processes.

A pid alone does not identify a process: pids are reused, and every machine has its own. The start time, in clock ticks
since boot, and the boot id of the machine make it unique.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import random
import select
import signal
import socket
import struct
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn, TextIO, cast

from rlhf_cli.errors import CTRL_C, Interrupted
from rlhf_cli.text.redaction import OverStream

if TYPE_CHECKING:
    from torch.optim import Optimizer

abandoned: set[threading.Thread] = set()
"""Threads of calls that were given up: the process does not wait for them at its end."""


def leave(code: int) -> NoReturn:
    """Run the registered exit functions, flush the output and end this process with `code`.

    Unloading some 600 modules takes as long as composing an experiment. After FSDP 2, the interpreter's last garbage
    collection can loop forever in a broken list (torch 2.13, on CPUs in three of four runs), so the command would hang.
    """
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def signal_name(number: int) -> str:
    """Return the name of a signal: Ctrl-C, SIGTERM."""
    return CTRL_C if number == signal.SIGINT else signal.Signals(number).name


Handler = Callable[[int, FrameType | None], object] | int


@contextmanager
def handled(handlers: Mapping[signal.Signals, Handler]) -> Iterator[None]:
    """Open a context with these signal handlers; outside the main thread, handlers are not changed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


_MOST_SIGNALS = 256
_HEARD_S = 2.0
"""Seconds that a signal's handler may take to begin before compiled code is taken to block the main thread."""


@contextmanager
def heard_in_time(handlers: Mapping[signal.Signals, Handler], leave: Callable[[int], object]) -> Iterator[None]:
    """Open a context with these signal handlers; call `leave(number)` from a thread if one does not begin in time.

    Python runs no handler while compiled code waits, as torch does for other ranks. Call this in the main thread.
    """
    reader, writer = socket.socketpair()
    for end in (reader, writer):
        end.setblocking(False)
    num_begun = 0

    def begun(handler: Handler) -> Handler:
        if not callable(handler):
            return handler

        def begin(number: int, frame: FrameType | None) -> object:
            nonlocal num_begun
            num_begun += 1
            with contextlib.suppress(OSError):
                reader.recv(_MOST_SIGNALS)
            return handler(number, frame)

        return begin

    def watch() -> None:
        while True:
            select.select([reader], [], [])
            before = num_begun
            is_over.wait(_HEARD_S)
            if is_over.is_set():
                return
            with contextlib.suppress(BlockingIOError):
                waiting = reader.recv(_MOST_SIGNALS, socket.MSG_PEEK)
                if num_begun == before and (number := next((byte for byte in waiting if byte in handlers), None)):
                    leave(number)

    is_over = threading.Event()
    thread = threading.Thread(target=watch, name="signals", daemon=True)
    outer = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)  # Python writes each signal's number there
    thread.start()
    try:
        with handled({number: begun(handler) for number, handler in handlers.items()}):
            yield
    finally:
        signal.set_wakeup_fd(outer)
        is_over.set()
        writer.send(b"\0")
        thread.join()
        reader.close()
        writer.close()


os.register_at_fork(after_in_child=partial(signal.set_wakeup_fd, -1))


@contextmanager
def stopped_early() -> Iterator[None]:
    """Open a context in which SIGTERM, SIGUSR1 and Ctrl-C raise Interrupted; does nothing outside the main thread."""

    def interrupt(number: int, _: FrameType | None) -> NoReturn:
        raise Interrupted(signal_name(number))

    asking = {signal.SIGTERM, signal.SIGUSR1} | ({signal.SIGINT} if is_ctrl_c_pythons_own() else set())
    with handled(dict.fromkeys(asking, interrupt)):
        yield


def is_ctrl_c_pythons_own() -> bool:
    """Return whether Ctrl-C raises a plain KeyboardInterrupt, which a user's code may raise as well."""
    return signal.getsignal(signal.SIGINT) is signal.default_int_handler


_SIGEV_THREAD_ID = 4


def start_timer(number: int, after_s: float, every_s: float) -> Callable[[], object]:
    """Send this thread the signal `number` after `after_s`, then every `every_s` seconds; return what ends that.

    Unlike the timer of `signal.setitimer` and `signal.alarm`, no library can change this one.
    """
    libc, timer = ctypes.CDLL(None, use_errno=True), ctypes.c_void_p()
    event = struct.pack("qiii44x", 0, number, _SIGEV_THREAD_ID, threading.get_native_id())  # struct sigevent
    if libc.timer_create(time.CLOCK_MONOTONIC, event, ctypes.byref(timer)):
        raise OSError(ctypes.get_errno(), "timer_create")
    times = [part for s in (every_s, max(after_s, 1e-6)) for part in (int(s), int(s % 1 * 1e9))]
    libc.timer_settime(timer, 0, (ctypes.c_long * 4)(*times), None)
    return partial(libc.timer_delete, timer)


_PR_SET_PDEATHSIG = 1
PARENT = "RLHF_PARENT_PID"
"""The environment variable by which a command tells a child with which process it has to die."""


def die_with(parent: int, number: int = signal.SIGKILL) -> None:
    """Ask the kernel to send this process a signal when its parent `parent` dies; send it now if that is dead.

    SIGKILL, because a dead parent has released the run's lock, and this process must not write any more. The signal is
    sent when the thread that started this process ends.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:  # the parent died before the call
        os.kill(os.getpid(), number)


class Lasting(OverStream):
    """A text stream that discards its output once a write fails."""

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError:
            into_nothing(self._stream)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError:
            into_nothing(self._stream)


def into_nothing(stream: TextIO) -> None:
    """Redirect a stream to /dev/null, including its buffer and the output of child processes."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


@contextlib.contextmanager
def lasting_output() -> Iterator[None]:
    """Open a context in which output to a closed stdout or stderr is discarded without an error."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = Lasting(sys.stdout), Lasting(sys.stderr)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # the stream was closed
            sys.stdout.flush()
        sys.stdout, sys.stderr = before


@contextlib.contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Open a context with these environment variables; afterwards the whole environment is as it was before."""
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def temporary_attributes(owner: object, **values: object) -> Iterator[None]:
    """Open a context in which an instance or a module has `values` as its own attributes.

    On exit its own attributes are restored. Those it did not have are removed, so that its class's apply again.
    """
    own = vars(owner)
    before = {name: own[name] for name in values if name in own}
    own.update(values)
    try:
        yield
    finally:
        for name in values:
            own.pop(name, None)
        own.update(before)


_OPTIONS = ("weight_decay", "betas", "eps")
"""The optimizer options that come from arguments; some optimizers also keep counters in their groups."""


@contextmanager
def keeping_options(optimizer: Optimizer) -> Iterator[None]:
    """Keep the options that come from arguments while a state is loaded in this context: what is typed counts."""
    typed = [{name: group[name] for name in _OPTIONS if name in group} for group in optimizer.param_groups]
    yield
    for group, options in zip(optimizer.param_groups, typed, strict=True):
        group.update(options)


_BOOT = Path("/proc/sys/kernel/random/boot_id")
_PLACE_OF_START = 19
"""Index of field 22 of proc(5), `starttime`, counted from 0 after the name in parentheses of /proc/PID/stat."""


@dataclass(frozen=True)
class ProcessIdentity:
    """One process. `start_ticks` and `boot` are None if unknown."""

    pid: int
    host: str
    start_ticks: int | None = None
    boot: str | None = None

    def is_alive(self) -> bool | None:
        """Return whether this exact process lives, on this boot; None if it ran on another machine."""
        if self.host != socket.gethostname():
            return None
        for recorded, now in ((self.boot, boot_id()), (self.start_ticks, start_ticks(self.pid))):
            if recorded is not None and now not in (None, recorded):
                return False
        return is_running(self.pid)


def this_process() -> ProcessIdentity:
    return ProcessIdentity(os.getpid(), socket.gethostname(), start_ticks(os.getpid()), boot_id())


def start_ticks(pid: int) -> int | None:
    """Return when a local process started, in clock ticks since boot, or None if unknown."""
    fields = stat_fields(pid)
    return int(fields[_PLACE_OF_START]) if len(fields) > _PLACE_OF_START else None


def stat_fields(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the name, which may hold blanks; [] if there is no such file."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()


def boot_id() -> str | None:
    """Return the id of this machine's boot, or None if the system has none."""
    try:
        return _BOOT.read_text(encoding="ascii").strip() or None
    except OSError:
        return None


def is_running(pid: int) -> bool:
    """Return whether a process of this machine has not ended."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it belongs to another user
    return stat_fields(pid)[:1] not in (["Z"], ["X"])  # ended but not reaped, as happens under a container's init


def is_stopped(pid: int) -> bool:
    """Return whether a process is stopped by a signal; False if unknown."""
    return stat_fields(pid)[:1] in (["T"], ["t"])


@contextmanager
def kept(given: object) -> Iterator[None]:
    """Keep what a user's function does to the process away from the training. Do nothing in other threads.

    Its random streams are seeded by `given`, so that a resumed run repeats them; then those of the training continue.
    Environment variables, locale and umask are not put back: rewards set the first on purpose, and the others do not
    change the numbers.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    owner, before = os.getpid(), {name: read() for name, (read, _, _) in _settings().items()}
    seed = zlib.crc32(repr(given).encode(errors="replace"))
    torch, numpy = (cast(Any, sys.modules.get(library)) for library in ("torch", "numpy.random"))
    streams: list[Callable[[], object]] = [partial(random.setstate, random.getstate())]
    random.seed(seed)
    if hasattr(numpy, "get_state"):
        streams.append(partial(numpy.set_state, numpy.get_state()))
        numpy.seed(seed)
    if hasattr(torch, "default_generator"):
        streams.append(partial(torch.set_rng_state, torch.get_rng_state()))
        torch.default_generator.manual_seed(seed)
        if torch.cuda.is_initialized():
            streams.append(partial(torch.cuda.set_rng_state, torch.cuda.get_rng_state()))
    try:
        yield
    finally:
        if os.getpid() != owner:
            os._exit(1)  # the function has forked, and the child must not train on
        for name, (read, write, usual) in _settings().items():
            was = before.get(name, usual)
            if was is not None and read() != was:
                write(None if str(was) == "cpu" else was)  # as it is where no device was set, and quicker
        for put_back in streams:
            put_back()


def _settings() -> dict[object, Any]:
    """Return how each setting is read and written, and what it is if the function was the first to import torch."""
    found: dict[object, Any] = {"folder": (lambda: os.getcwd() if os.path.isdir(".") else None, os.chdir, None)}
    for number in signal.valid_signals():
        found[number] = (partial(signal.getsignal, number), partial(signal.signal, number), None)
    if hasattr(torch := cast(Any, sys.modules.get("torch")), "set_deterministic_debug_mode"):  # else half imported
        usual = {"default_dtype": torch.float32, "default_device": torch.device("cpu"), "num_threads": None}
        for name, value in (usual | {"deterministic_debug_mode": 0, "float32_matmul_precision": "highest"}).items():
            found[name] = (getattr(torch, f"get_{name}"), getattr(torch, f"set_{name}"), value)
        found["grad"] = (torch.is_grad_enabled, torch.set_grad_enabled, True)
    return found
