"""Two machines of a run on this one: real commands that meet over loopback, whose ranks only pretend.

The commands are forked from one process that has imported torch, so that a test takes a second and not five.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path

from rlhf_cli import cli
from rlhf_cli.cli.verbs import join, resume
from rlhf_cli.launch import elastic, joining, machines
from rlhf_cli.launch.freeze import create_run
from rlhf_cli.launch.rollout_server import free_ports
from rlhf_cli.plan import launch_plan
from rlhf_cli.plan.preflight import preflight
from rlhf_cli.plan.prepare import prepare
from rlhf_cli.runs.run_folder import RunFolder

MODULES = (elastic, joining, machines, join, resume)


def run_command(
    words: list[str], file: str, patched: dict[str, float], cwd: str, environment: dict[str, str], path: list[str]
) -> None:
    """Run `rlhf` with these words in the folder `cwd`, print into `file`, and exit with its code."""
    sys.stdout.flush()
    printed = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(printed, 1)
    os.dup2(printed, 2)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:] = [cwd, *path]
    time.tzset()
    launch_plan.WORKER = "pretended_rank"
    for name, value in patched.items():
        known = [module for module in MODULES if hasattr(module, name)]
        assert known, name
        for module in known:
            setattr(module, name, value)
    code = cli.main(words)
    sys.stdout.flush()
    os._exit(code)


_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["torch", "tests.launch.machines.two_machines"])

RANK = """
import json, os, pathlib, signal, sys, time
from rlhf_cli.process import PARENT, die_with
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_status import ANOTHER_RANK, FINISHED, PREEMPTED, update_status

die_with(int(os.environ[PARENT]))
rank, folder = int(os.environ["RANK"]), pathlib.Path(sys.argv[1])
told = folder / f"tell-rank{rank}"


def hear(number, frame):
    (folder / f"heard-rank{rank}").write_text(signal.Signals(number).name)


signal.signal(signal.SIGTERM, hear)
keys = ("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE")
here = {"pid": os.getpid(), "resume": "--resume" in sys.argv, "interface": os.environ.get("GLOO_SOCKET_IFNAME")}
(folder / f"here-{rank}").write_text(json.dumps({**here, **{key: os.environ.get(key) for key in keys}}))
(folder / f"here-{rank}").rename(folder / f"here-rank{rank}.json")
while not told.exists():
    if any(folder.glob("heard-rank*")):  # as the ranks of a run agree by all_reduce
        if rank == 0:
            reason = "SIGTERM" if (folder / "heard-rank0").exists() else ANOTHER_RANK
            update_status(RunFolder(folder), state=PREEMPTED, reason=reason)
        sys.exit()
    time.sleep(0.02)
if told.read_text() == "fail":
    content = {"rank": rank, "time": time.time(), "message": "it is unhappy", "traceback": f"traceback of {rank}"}
    (folder / f"failure-rank{rank}.json").write_text(json.dumps(content))
    sys.exit(1)
if rank == 0:
    update_status(RunFolder(folder), state=FINISHED)
"""


@dataclass
class Command:
    """A command on one of the machines. What it prints goes to a file."""

    process: BaseProcess
    file: Path

    @property
    def said(self) -> str:
        """Return what it has printed, without the moves of the cursor."""
        text = self.file.read_text() if self.file.exists() else ""
        return re.sub(r"\x1b\[[^a-zA-Z]*[a-zA-Z]", "", text)

    def wait(self, timeout_s: float = 40.0) -> int:
        """Return its exit code, negative for a signal."""
        self.process.join(timeout_s)
        assert self.process.exitcode is not None, f"it still runs: {self.said}"
        return self.process.exitcode


@dataclass
class TwoMachines:
    """A frozen run of two machines with a rank each, in the current folder, and the commands that were typed."""

    folder: RunFolder
    address: str
    commands: list[Command] = field(default_factory=list)

    def type(self, *words: str, **patched: float) -> Command:
        """Type `rlhf` with these words. `patched` are times of the machinery's, by name."""
        file = Path(f"said-{len(self.commands)}")
        argument = (list(words), str(file.resolve()), patched, os.getcwd(), dict(os.environ), sys.path)
        process = _FORKS.Process(target=run_command, args=argument)
        process.start()
        self.commands.append(Command(process, file))
        return self.commands[-1]

    def first(self, **patched: float) -> Command:
        """Start the run on the first machine, and wait until it waits."""
        command = self.type("resume", str(self.folder.path), **patched)
        until(lambda: f"rlhf join {self.address}" in command.said, command)
        return command

    def join(self, *words: str, **patched: float) -> Command:
        """Type the line that the first has printed."""
        return self.type("join", self.address, *words, **patched)

    def both(self, **patched: float) -> tuple[Command, Command]:
        """Start both, and wait until both ranks run."""
        first, second = self.first(**patched), self.join(**patched)
        for rank in (0, 1):
            until(lambda rank=rank: self.here(rank).exists(), first, second)
        return first, second

    def here(self, rank: int) -> Path:
        """Return the file that a rank writes as it starts."""
        return self.folder.path / f"here-rank{rank}.json"

    def tell(self, rank: int, what: str) -> None:
        """Let a rank `end` or `fail`."""
        file = self.folder.path / f"tell-rank{rank}"
        file.with_suffix(".tmp").write_text(what)
        file.with_suffix(".tmp").rename(file)

    def kill_all(self) -> None:
        """End what is left."""
        for command in self.commands:
            if command.process.is_alive():
                command.process.kill()
                command.process.join()


def two_machines(place: Path) -> TwoMachines:
    """Freeze a run of two machines below `place`, whose ranks are of a module that lies there."""
    (place / "pretended_rank.py").write_text(RANK)
    address = f"127.0.0.1:{free_ports(1)[0]}"
    words = ["launch=cpu", "launch.nodes=2", f"launch.rdzv={address}", "run.name=two", "launch.grace_s=20"]
    prepared = prepare(["+exp=quickstart", "track=none", "trainer.args.per_device_train_batch_size=32", *words])
    plan = preflight(prepared.experiment, prepared.composed)
    return TwoMachines(create_run(prepared.experiment, prepared.composed, files=plan.files), address)


def until(condition: Callable[[], object], *commands: Command, timeout_s: float = 40.0) -> None:
    """Wait until the condition holds."""
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, [command.said for command in commands]
        time.sleep(0.02)
