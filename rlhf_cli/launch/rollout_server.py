"""Run the vLLM server of a run and end it with the run.

Its standard input is a pipe whose other end the starter holds and never writes to. The pipe closes when the starter
closes it, ends, or is killed, even by kill -9. Then all processes started by the command get SIGTERM, and SIGKILL after
a grace period.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

import httpx2
from rich.console import Console
from rich.markup import escape

from rlhf_cli.display.terminal import cut_middle
from rlhf_cli.errors import RankFailed
from rlhf_cli.plan.launch_plan import ServerPlan, port_problem, python_path
from rlhf_cli.process import die_with

GRACE_S = 10.0
_PARENT_LOOK_S = 0.1
_SIGNALS_FROM = 128  # a shell's exit code of a process that a signal ended is this much more than the signal

_START_TIMEOUT_S = 1800.0  # startup time limit: a large model is downloaded, loaded and compiled
_LOOK_S = 0.5
_ANSWER_TIMEOUT_S = 5.0
_WATCH_S = 2.0
_REFUSALS = 2
_LAST_LINES = 15
_MOST_CAUSES = 3
_PREFIX = re.compile(r"^(?:\([\w ]+pid=\d+\) ?)?(?:(?:WARNING|ERROR|CRITICAL) \S+ \S+ \[\S+\] )?")
_CAUSE = re.compile(
    r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception)\b: .*|.*(?::? error: | (?:died|exited) unexpectedly).*"
)
_NEEDS_LESS = (
    "trainer.args.vllm_max_model_length=1024, or launch.vllm.args.max_num_seqs=32, or launch.rollout_gpus=2, or "
    "trainer.args.vllm_gpu_memory_utilization=0.95"
)
_HINTS = (  # what the server says -> what to type
    (r"unrecognized arguments: --([\w-]+)", "'~launch.vllm.args.{}'"),
    (
        "less than (?:desired|requested)",
        "trainer.args.vllm_gpu_memory_utilization=0.5  # or end the other process that holds memory",
    ),
    ("out of memory|memory for the cache blocks|available KV cache memory|Cannot allocate memory", _NEEDS_LESS),
)


def main(command: list[str]) -> int:
    """Run the command until it or the starter ends; return its exit code, or 128 + the signal that killed it."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # Ctrl-C is for the starter, which ends this process in time
    asked = []
    signal.signal(signal.SIGTERM, lambda *_: asked.append(True))
    begin = partial(_as_usual, os.getpid())
    # A new session, so that all processes of the server can be ended together.
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=begin)
    while child.poll() is None:
        readable, _, _ = select.select([sys.stdin], [], [], _PARENT_LOOK_S)
        if asked or (readable and os.read(sys.stdin.fileno(), 1) == b""):
            end_session(child, GRACE_S)
            break
    end_session(child, 0.0)  # end processes that the command left behind
    code = child.wait()
    return code if code >= 0 else _SIGNALS_FROM - code


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


def _as_usual(parent: int) -> None:
    """Reset the child's signal handlers, and end it if its parent is killed."""
    die_with(parent, signal.SIGTERM)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


@dataclass(frozen=True)
class RolloutServer:
    """A started server."""

    plan: ServerPlan
    keeper: subprocess.Popen[bytes]  # the process that ends it with the run
    log_start: int  # size of its log before
    refused: threading.Event = field(default_factory=threading.Event)
    """Set when it does not answer: a server whose engine died waits for the trainer, which waits for it."""

    def is_lost(self) -> bool:
        """Return whether the server has ended by itself, or its engine."""
        return self.keeper.poll() is not None or self.refused.is_set()

    def watch(self, stop: threading.Event) -> None:
        """Look for a server that refuses twice in a row, until `stop`; one that is slow to answer works."""
        refusals = 0
        while not stop.wait(_WATCH_S) and not self.refused.is_set():
            refusals = refusals + 1 if answers(self.plan.url) is False else 0
            if refusals == _REFUSALS:
                self.refused.set()

    def failure(self) -> RankFailed | None:
        """Return why the server serves no more, None if it does."""
        if not self.is_lost() and answers(self.plan.url) is not False:
            return None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.keeper.wait(GRACE_S)  # a server whose engine died says why, and ends
        return self.failed("while the run trained")

    def failed(self, when: str) -> RankFailed:
        """Return the error for a server that ended, or does not answer, with its first errors or its last lines."""
        code, lines = self.keeper.poll(), self.lines()
        causes = [line for line in (_PREFIX.sub("", line) for line in lines) if _CAUSE.fullmatch(line)]
        cause = "\n".join(list(dict.fromkeys(causes))[:_MOST_CAUSES] or lines[-_LAST_LINES:]) or "(it wrote nothing)"
        ended, hint = f"ended with code {code}", "launch.rollout=hf launch.rollout_gpus=0"
        if code is None:
            ended = "does not answer"
        elif code - _SIGNALS_FROM in set(signal.Signals):  # 255 is no signal
            ended, hint = f"was killed by {signal.Signals(code - _SIGNALS_FROM).name}", _NEEDS_LESS
        for pattern, typed in _HINTS:
            if (found := re.search(pattern, cause)) is not None:
                hint = typed.format(*(name.replace("-", "_") for name in found.groups()))
                break
        says = "`dmesg | tail` says whether the kernel ended it for lack of memory"
        advice, where = says if "exited unexpectedly" in cause else None, os.path.relpath(self.plan.log)
        return RankFailed(f"the vLLM server {ended}, {when}", where=where, got=cause, hint=hint, advice=advice)

    def lines(self) -> list[str]:
        """Return what the server wrote to its log since this start."""
        with self.plan.log.open("rb") as log:
            log.seek(self.log_start)
            text = log.read().decode(errors="replace")
        return [line for line in text.splitlines() if line.strip()]


@contextlib.contextmanager
def rollout_server(plan: ServerPlan | None, console: Console) -> Iterator[RolloutServer | None]:
    """Run the server of `plan` around a run, if there is one; wait until it is healthy.

    Raise RankFailed with the cause from its log if it ends before, takes over half an hour, or its port is taken.
    """
    if plan is None:
        yield None
        return
    if (reason := port_problem(plan.port)) is not None:
        hint = "'~trainer.args.vllm_server_port'  # the run chooses a free one"
        raise RankFailed("the vLLM server's port is taken", got=f"{plan.url}: {reason}", hint=hint)
    plan.log.parent.mkdir(parents=True, exist_ok=True)
    with plan.log.open("ab") as log:
        log_start = log.tell()
        keeper = subprocess.Popen(
            [sys.executable, "-m", "rlhf_cli.launch.rollout_server", *plan.argv],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **plan.env, "PYTHONPATH": python_path()},
            start_new_session=True,
        )
    try:
        server, stop = RolloutServer(plan, keeper, log_start), threading.Event()
        began, url = time.monotonic(), plan.url
        with console.status("") as bar:
            while not answers(url):
                seconds = time.monotonic() - began
                shown = escape(cut_middle(next(reversed(server.lines()), ""), max(1, console.width - 50)))
                bar.update(f"waiting for vLLM at {url}: {seconds:.0f} s [dim]{shown}[/]")
                if server.is_lost() or seconds > _START_TIMEOUT_S:
                    raise server.failed(f"after {seconds:.0f} s, before it was ready")
                time.sleep(_LOOK_S)
        console.print(f"vLLM answers at {url} after {time.monotonic() - began:.0f} s")
        threading.Thread(target=server.watch, args=(stop,), daemon=True).start()
        try:
            yield server
        finally:
            stop.set()
    finally:
        assert keeper.stdin is not None
        keeper.stdin.close()
        try:
            keeper.wait(timeout=GRACE_S + 5)
        except subprocess.TimeoutExpired:
            keeper.kill()
            keeper.wait()


def answers(url: str) -> bool | None:
    """Return whether GET /health answers 200, which is what TRL's client waits for; None if no answer comes in time."""
    try:  # the server is local: no proxy of the environment
        return httpx2.get(f"{url}/health", timeout=_ANSWER_TIMEOUT_S, trust_env=False).status_code == 200
    except httpx2.HTTPError as error:
        return None if isinstance(error, httpx2.TimeoutException) else False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
