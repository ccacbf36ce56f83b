"""Run a server only while its starter lives: `python -m rlhf_cli.launch.kept_process COMMAND...`.

Its standard input is a pipe whose other end the starter holds and never writes to. The pipe closes when the starter
closes it, ends, or is killed, even by kill -9. Then all processes started by the command get SIGTERM, and SIGKILL after
a grace period. It imports only the standard library.
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
    """Run the command until it or the starter ends; return its exit code, or 128 + the signal that killed it."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # Ctrl-C is for the starter, which ends this process in time
    asked = []
    signal.signal(signal.SIGTERM, lambda *_: asked.append(True))
    # A new session, so that all processes of the server can be ended together.
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=_as_usual)
    while child.poll() is None:
        if asked or _is_closed(sys.stdin.fileno()):
            end_session(child, GRACE_S)
            break
    end_session(child, 0.0)  # end processes that the command left behind
    code = child.wait()
    return code if code >= 0 else 128 - code


def end_session(child: subprocess.Popen[bytes], grace_s: float) -> None:
    """Send SIGTERM to all processes of the child's session, and SIGKILL after `grace_s` seconds."""
    deadline = time.monotonic() + grace_s
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGTERM)
        while time.monotonic() < deadline:
            child.poll()
            os.killpg(child.pid, 0)
            time.sleep(_LOOK_S)
        os.killpg(child.pid, signal.SIGKILL)


def _as_usual() -> None:
    """Reset the child's signal handlers, and end it if this process is killed (Linux)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


def _is_closed(descriptor: int) -> bool:
    """Return whether the other end is closed, waiting a moment for it."""
    readable, _, _ = select.select([descriptor], [], [], _LOOK_S)
    return bool(readable) and os.read(descriptor, 1) == b""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
