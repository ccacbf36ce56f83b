"""Keeps a server for as long as the process that started it lives: `python -m rlhf_cli.launch.kept_process COMMAND...`.

It is started with a pipe as its standard input, of which the starter holds the other end and never writes. The pipe
ends when the starter closes it, ends, or is killed in any way, kill -9 too: then everything that the command has
started is asked to end (SIGTERM), and killed after a while. It imports nothing but the standard library.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time

GRACE_S = 10.0
_LOOK_S = 0.1
_SET_PARENT_DEATH_SIGNAL = 1


def main(command: list[str]) -> int:
    """Run the command until it ends or the starter is gone; returns its exit code, or 128 + the signal it died of."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # a Ctrl-C is for the starter, who ends this when it is time
    asked = []
    signal.signal(signal.SIGTERM, lambda *_: asked.append(True))
    # A session of its own: all that the server starts is ended with it.
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=_as_usual)
    while child.poll() is None:
        if asked or _is_closed(sys.stdin.fileno()):
            end_session(child, GRACE_S)
            break
    end_session(child, 0.0)  # what it left behind
    code = child.wait()
    return code if code >= 0 else 128 - code


def end_session(child: subprocess.Popen[bytes], grace_s: float) -> None:
    """Ask every process of the child's session to end, and kill those that are still there after `grace_s` seconds."""
    deadline = time.monotonic() + grace_s
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGTERM)
        while time.monotonic() < deadline:
            child.poll()
            os.killpg(child.pid, 0)
            time.sleep(_LOOK_S)
        os.killpg(child.pid, signal.SIGKILL)


def _as_usual() -> None:
    """Let the child take signals as any program does, and end where this one is killed itself (Linux)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


def _is_closed(descriptor: int) -> bool:
    """Return whether the other end is closed, after waiting for it a moment."""
    readable, _, _ = select.select([descriptor], [], [], _LOOK_S)
    return bool(readable) and os.read(descriptor, 1) == b""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
