"""Run the vLLM server of a run and end it with the run.

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
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

from rich.console import Console
from rich.markup import escape

from rlhf_cli.errors import RankFailed
from rlhf_cli.plan.launch_plan import python_path
from rlhf_cli.plan.rollout_server_plan import ServerPlan

GRACE_S = 10.0
_PARENT_LOOK_S = 0.1
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


def free_ports(count: int) -> list[int]:
    """Return distinct free ports of this machine."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]


def end_session(child: subprocess.Popen[bytes], grace_s: float) -> None:
    """Send SIGTERM to all processes of the child's session, and SIGKILL after `grace_s` seconds."""
    deadline = time.monotonic() + grace_s
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGTERM)
        while time.monotonic() < deadline:
            child.poll()
            os.killpg(child.pid, 0)
            time.sleep(_PARENT_LOOK_S)
        os.killpg(child.pid, signal.SIGKILL)


def _as_usual() -> None:
    """Reset the child's signal handlers, and end it if this process is killed (Linux)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


def _is_closed(descriptor: int) -> bool:
    """Return whether the other end is closed, waiting a moment for it."""
    readable, _, _ = select.select([descriptor], [], [], _PARENT_LOOK_S)
    return bool(readable) and os.read(descriptor, 1) == b""


START_TIMEOUT_S = 1800.0
"""Startup time limit: a large model is downloaded, loaded and compiled."""

_LOOK_S = 0.5
_ANSWER_TIMEOUT_S = 5.0
_LAST_LINES = 15


@contextlib.contextmanager
def rollout_server(plan: ServerPlan | None, console: Console, *, timeout_s: float = START_TIMEOUT_S) -> Iterator[None]:
    """Run the server of `plan`, whose ports are chosen, around a run; does nothing for None.

    Waits until the server is healthy and shows the seconds on the console. Raises RankFailed with the server's last
    lines if it ends before that, or is not healthy after `timeout_s` seconds. If the server ends during a run that then
    fails, the run's error gets a note with those lines.
    """
    if plan is None:
        yield
        return
    if not plan.port:
        raise ValueError("the ports of the server have not been chosen")
    plan.log.parent.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, **plan.env, "PYTHONPATH": python_path()}
    with plan.log.open("ab") as log:
        keeper = subprocess.Popen(
            [sys.executable, "-m", "rlhf_cli.launch.rollout_server", *plan.argv],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
    try:
        _wait(plan, keeper, console, timeout_s)
        try:
            yield
        except BaseException as error:
            if (code := keeper.poll()) is not None:
                error.add_note(f"the vLLM server had ended by itself, with code {code}:\n{last_lines(plan)}")
            raise
    finally:
        _end(keeper)


def last_lines(plan: ServerPlan) -> str:
    """Return the last lines of the server's log."""
    lines = plan.log.read_text(encoding="utf-8", errors="replace").splitlines() if plan.log.is_file() else []
    return "\n".join(lines[-_LAST_LINES:]) or "(it wrote nothing)"


def is_healthy(url: str) -> bool:
    """Return whether GET /health answers 200, which is what TRL's client waits for."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # the server is local, so bypass proxies
    try:
        with opener.open(f"{url}/health", timeout=_ANSWER_TIMEOUT_S) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _wait(plan: ServerPlan, keeper: subprocess.Popen[bytes], console: Console, timeout_s: float) -> None:
    began = time.monotonic()
    with console.status("") as bar:
        while not is_healthy(plan.url):
            seconds = time.monotonic() - began
            line = last_lines(plan).splitlines()[-1]
            shown = escape(line[: max(0, console.width - 50)])
            bar.update(f"waiting for vLLM at {plan.url}: {seconds:.0f} s [dim]{shown}[/]")
            if (code := keeper.poll()) is not None:
                raise _failed(plan, f"the vLLM server ended with code {code} after {seconds:.0f} s")
            if seconds > timeout_s:
                raise _failed(plan, f"the vLLM server did not answer within {timeout_s:.0f} s")
            time.sleep(_LOOK_S)
    console.print(f"vLLM answers at {plan.url} after {time.monotonic() - began:.0f} s", highlight=False)


def _failed(plan: ServerPlan, what: str) -> RankFailed:
    hint = "launch.rollout=hf  # or what the lines above ask for"
    return RankFailed(what, where=os.path.relpath(plan.log), got=last_lines(plan), hint=hint)


def _end(keeper: subprocess.Popen[bytes]) -> None:
    """Close the pipe, upon which the keeper ends the server and itself."""
    assert keeper.stdin is not None
    keeper.stdin.close()
    try:
        keeper.wait(timeout=GRACE_S + 5)
    except subprocess.TimeoutExpired:
        keeper.kill()
        keeper.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
