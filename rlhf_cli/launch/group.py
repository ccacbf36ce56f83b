"""Make this command one rank of a group that a launcher started: torchrun, srun, Kubeflow, or a shell on each machine.

Rank 0 does what was typed. It freezes the run folder and tells the others through torch's store (MASTER_ADDR,
MASTER_PORT) which folder to train. The others wait for it and read the folder, on a file system that all share. A
mistake that rank 0 finds is printed once and ends all ranks with its exit code. Neither the store nor torch's own ports
have a password: see docs/how-to/launch.md.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from rich.console import Console

from rlhf_cli.errors import EXIT_CRASH, EXIT_PREEMPTED, ConfigError, Interrupted, Preempted, RankFailed, RunError
from rlhf_cli.launch.freeze import plan_frozen
from rlhf_cli.launch.gpu_locks import gpus_held
from rlhf_cli.launch.stopping import first_failure
from rlhf_cli.plan.launch_plan import log_name
from rlhf_cli.plan.rank_group import RankGroup, rank_group, why_not_reached
from rlhf_cli.process import PARENT, die_with, environment, handled, signal_name
from rlhf_cli.runs.provenance import sha256, versions
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_status import FAILED, read_status, update_status
from rlhf_cli.text.redaction import redacted

_JOIN_TIMEOUT_S = 900.0  # rank 0 waits this long for the others, and they wait this long for its store
_HEARD_TIMEOUT_S = 60.0  # rank 0 waits this long for the others to read its exit code: they may still import torch
_SHARED_FOLDER_S = 5.0  # a network file system may show a new file a moment later
_POLL_S = 0.1
_ANSWER_S = 10.0
_PACKAGES = ("rlhf", "torch", "trl", "transformers", "accelerate", "peft")  # must have one version on all machines


@dataclass
class Leader:
    """Rank 0 of a group: it tells the other ranks what to train, or that there is nothing to train."""

    group: RankGroup
    has_begun: bool = False

    @cached_property
    def _board(self) -> _Board:
        return _Board(self.group)

    def refuse_sweep(self, command: str) -> None:
        """Raise ConfigError: a sweep starts the processes of its runs itself."""
        what, got = "a launcher starts the ranks of one run, and a sweep has several", f"{self.group.world_size} ranks"
        raise ConfigError(what, where="environment", got=got, expected="a launcher for each run", hint=command)

    def size_words(self, words: list[str]) -> list[str]:
        """Return the overrides that say how many ranks the launcher started, unless the user typed such numbers."""
        sizes = {"launch.processes": self.group.local_size, "launch.nodes": self.group.nodes}
        typed = {word.partition("=")[0].lstrip("+~") for word in words}
        return [f"{key}={number}" for key, number in sizes.items() if key not in typed]

    def begin(self, console: Console, folder: RunFolder, *, resume: bool) -> None:
        """Tell all ranks to train `folder`, and return once all can.

        Raise RunError if a rank does not come in time or cannot train the folder, Interrupted if one was stopped.
        """
        if self.group.world_size > 1:
            wanted = {name: versions().get(name) for name in _PACKAGES}
            told = {"run": str(folder.path), "resume": resume, "config": sha256(folder.config), "versions": wanted}
            self._board.write("run", told)
            if problems := self._problems(console):
                what, got = "some ranks cannot train the run", "\n".join(problems)
                expected = "one file system for all machines, and the same Python environment"
                advice, where = "run.root=/a/shared/folder", str(folder.path)
                raise RunError(what, where=where, got=got, expected=expected, advice=advice)
            self._board.write("go", {})
        self.has_begun = True

    def end(self, exit_code: int) -> None:
        """Tell ranks that still wait to exit with this code, and wait until they have read it."""
        if self.has_begun or self.group.world_size == 1:
            return
        with contextlib.suppress(RuntimeError, OSError):  # the others are gone, and their launcher has ended them
            for key in ("run", "go"):
                self._board.write(key, {"exit_code": exit_code})
            self._board.wait_until_heard()

    def _problems(self, console: Console) -> list[str]:
        """Wait for the answers of all ranks, and return why some of them cannot train the run."""
        others, began, problems = set(range(1, self.group.world_size)), time.monotonic(), list[str]()
        with console.status("") as bar:
            while others:
                seconds = time.monotonic() - began
                bar.update(f"waiting for {len(others)} of {self.group.world_size} ranks: {seconds:.0f} s")
                if seconds > _JOIN_TIMEOUT_S:
                    what = f"{len(others)} of {self.group.world_size} ranks did not come within {_JOIN_TIMEOUT_S:.0f} s"
                    got, expected = f"no answer of rank {sorted(others)}", "the same command on each machine"
                    raise RunError(what, where=f"{self.group.host}:{self.group.port}", got=got, expected=expected)
                for rank in [rank for rank in others if self._board.has(f"answer/{rank}")]:
                    answer = self._board.read(f"answer/{rank}")
                    others.remove(rank)
                    if answer.get("stopped"):
                        raise Interrupted(f"{answer['stopped']} on {answer['host']}")
                    if answer.get("problem"):
                        problems.append(f"rank {rank} on {answer['host']}: {answer['problem']}")
                time.sleep(_POLL_S)
        return problems


class _Board:
    """What the ranks of one start tell each other: JSON objects in torch's store."""

    def __init__(self, group: RankGroup) -> None:
        """Open the store: rank 0 makes it unless torchrun has, the others wait. Raise RunError after the timeout."""
        holds_store = group.rank == 0 and not group.is_torchruns
        began = time.monotonic()
        while not holds_store and (reason := why_not_reached(group.host, group.port)) is not None:
            if time.monotonic() - began > _JOIN_TIMEOUT_S:
                what, got = "rank 0 does not answer", f"{reason}, for {_JOIN_TIMEOUT_S:.0f} s"
                where = f"{group.host}:{group.port}, from MASTER_ADDR and MASTER_PORT"
                raise RunError(what, where=where, got=got, expected="a rank 0 there, and a network that reaches it")
            time.sleep(_POLL_S)
        from torch.distributed import PrefixStore, TCPStore

        # torch's own store of the process group shares the port: that is what multi_tenant is for.
        place, timeout = (group.host, group.port), timedelta(seconds=_ANSWER_S)
        store = TCPStore(*place, None, holds_store, timeout, wait_for_workers=False, multi_tenant=True)
        self._store = PrefixStore(f"rlhf/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
        self._group = group

    def has(self, key: str) -> bool:
        return bool(self._store.check([key]))

    def read(self, key: str) -> dict[str, Any]:
        return cast(dict[str, Any], json.loads(self._store.get(key)))

    def write(self, key: str, content: dict[str, object]) -> None:
        self._store.set(key, json.dumps(content))

    def wait_until_heard(self) -> None:
        """Wait until every other rank has read the exit code: a launcher kills what remains once one rank has ended."""
        until, is_first = time.monotonic() + _HEARD_TIMEOUT_S, self._group.rank == 0
        with handled({signal.SIGTERM: signal.SIG_IGN}), contextlib.suppress(RuntimeError):
            self._store.add("heard", int(not is_first))
            while self._store.add("heard", 0) < self._group.world_size - 1 and time.monotonic() < until:
                time.sleep(_POLL_S)
            if is_first:
                time.sleep(3 * _POLL_S)  # it may hold the store, and the others still count

    def wait_for(self, key: str) -> dict[str, Any]:
        """Return what rank 0 writes under the key. Raise RankFailed if rank 0 is gone."""
        try:
            while not self.has(key):
                time.sleep(_POLL_S)
            return self.read(key)
        except RuntimeError as error:  # torch's DistError is one
            raise RankFailed("rank 0 is gone", got=str(error).partition("\n")[0]) from None


def run_in_group(run: Callable[[Leader | None], int]) -> int:
    """Run a verb as the rank that the environment makes of this process."""
    group = rank_group()
    if group is None:
        return run(None)
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # before torch is imported; warnings are in the log
    if group.is_torchruns:
        die_with(int(os.environ.get(PARENT, os.getppid())))
    if group.rank > 0:
        return _follow(group)
    leader, code = Leader(group), EXIT_CRASH
    try:
        code = run(leader)
    except KeyboardInterrupt:
        code = EXIT_PREEMPTED
        raise
    except Exception as error:
        code = getattr(error, "exit_code", EXIT_CRASH)
        raise
    finally:
        atexit.register(leader.end, code)  # after the error was printed
    return code


def _follow(group: RankGroup) -> int:
    board = _Board(group)
    answer: dict[str, object] = {"host": socket.gethostname()}
    try:
        told = board.wait_for("run")
        if "exit_code" not in told:
            board.write(f"answer/{group.rank}", answer | {"problem": _problem_here(told)})
            told |= board.wait_for("go")
    except KeyboardInterrupt as stop:
        with contextlib.suppress(RuntimeError):
            board.write(f"answer/{group.rank}", answer | {"stopped": str(stop) or signal_name(signal.SIGINT)})
        raise
    if "exit_code" in told:
        board.wait_until_heard()
        return int(told["exit_code"])
    folder, resume = RunFolder(Path(told["run"])), bool(told["resume"])
    plan, _ = plan_frozen(folder, resume=resume)
    terminal = os.dup(sys.stderr.fileno())  # from here on, this process prints into the log
    with (folder.path / log_name(group.rank // group.local_size)).open("a", encoding="utf-8") as log:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
            os.dup2(log.fileno(), stream.fileno())
    with environment(plan.shared):
        from rlhf_cli.launch.worker import run_rank

        try:
            with gpus_held(plan, folder) if group.local_rank == 0 else contextlib.nullcontext():
                run_rank(folder, resume=resume)
        except (Preempted, KeyboardInterrupt):
            return EXIT_PREEMPTED
        except Exception as error:
            first = first_failure(folder)
            if first is None or first.rank == group.rank:  # else the rank that failed before says it
                message = first.message if first is not None else str(error)
                headline = f"rank {group.rank} on {answer['host']} failed: {message}"
                trace = first.traceback if first is not None and not hasattr(error, "exit_code") else ""
                with contextlib.suppress(OSError):
                    os.write(terminal, redacted(f"{trace}error: {headline}\n").encode())
                    if read_status(folder).state != FAILED:
                        update_status(folder, state=FAILED, reason=headline, failing_rank=group.rank)
            return int(getattr(error, "exit_code", EXIT_CRASH))
    return 0


def _problem_here(told: dict[str, Any]) -> str | None:
    """Return why this rank cannot train the run, or None."""
    folder, until = RunFolder(Path(told["run"])), time.monotonic() + _SHARED_FOLDER_S
    while (seen := sha256(folder.config)) != told["config"]:
        if time.monotonic() > until:
            return f"{'no such folder' if seen is None else 'another folder of that name'}: {folder.path}"
        time.sleep(_POLL_S)
    here, wanted = versions(), told["versions"]
    other = [name for name in wanted if here.get(name) != wanted[name]]
    return ", ".join(f"{name} {here.get(name)}, not {wanted[name]}" for name in other) or None
