"""Run the ranks of this machine under torch's elastic agent, which is what torchrun and `elastic_launch` run.

torch starts the ranks, notices the first that fails and ends the others. Two things are ours, because its launcher has
no setting for them (docs/development/architecture.md, "torch's launcher starts the ranks"): a request to stop reaches
the ranks without their helper processes, and the exit code says that a run can be resumed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import FrameType

from torch.distributed import TCPStore
from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousParameters
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous
from torch.distributed.launcher.api import _get_addr_and_port
from torch.distributed.run import config_from_args, parse_args

from rlhf_cli.config.schema.run_sections import Launch
from rlhf_cli.errors import EXIT_CRASH, EXIT_OK, EXIT_PREEMPTED, EXIT_USER_ERROR, ConfigError, Interrupted
from rlhf_cli.launch.stopping import STOPPED, RanksEnd, failures_of, say_heard
from rlhf_cli.plan.launch_plan import LaunchPlan
from rlhf_cli.plan.rank_group import LOOPBACK
from rlhf_cli.process import PARENT, environment, heard_in_time, signal_name
from rlhf_cli.runs.run_folder import RunFolder

_AGENT_LOGGER = logging.getLogger("torch.distributed.elastic")
_LOOK_EVERY_S = 0.1
_SHUTDOWN_S = 10  # seconds for the other ranks here to end after one has failed
_SAVING_S = 10.0  # seconds beyond the grace period before ranks are killed
_AFTER_SECOND_REQUEST_S = 3.0
_EXIT_BARRIER_S = 10.0  # seconds for which an agent whose ranks have ended waits for the agents of other machines
_STORE_TIMEOUT_S = 300


class ServerEnded(Exception):
    """Raised by `look` to end the ranks, because the run's vLLM server has ended."""


def listening_store() -> TCPStore:
    """Return a new store that listens on loopback only, at a free port; torch's own listen on all interfaces."""
    listening = socket.create_server((LOOPBACK, 0))
    port, timeout = int(listening.getsockname()[1]), timedelta(seconds=_STORE_TIMEOUT_S)
    return TCPStore(LOOPBACK, port, None, True, timeout, wait_for_workers=False, master_listen_fd=listening.detach())


class OneMachine(StaticTCPRendezvous):
    """The rendezvous of a single machine, in a store that is there before it begins.

    torch calls `num_nodes_waiting` after every look at living ranks; this notes when, in `seen_at`, and calls `look`.
    """

    def __init__(self, store: TCPStore, run_id: str, look: Callable[[], object]) -> None:
        super().__init__(store.host, store.port, 0, 1, run_id, _STORE_TIMEOUT_S)
        self.seen_at = time.time()
        self._store, self._look = store, look

    def num_nodes_waiting(self) -> int:
        self.seen_at = time.time()
        self._look()
        return 0  # the number of machines never changes


class StopRequests:
    """Hand requests to stop to the ranks, and kill ranks that do not end in time.

    torch would signal a rank's whole process group, and so end data loaders and isolated rewards before it has saved.
    """

    def __init__(self, agent: LocalElasticAgent, grace_s: float) -> None:
        self.asked_by: str | None = None
        self.is_late = False
        self._agent, self._grace_s = agent, grace_s
        self._timers: list[threading.Timer] = []

    def ask(self, number: int, _: FrameType | None = None) -> None:
        """Ask every rank to stop; a second request leaves them a moment. Raise Interrupted if no rank runs yet."""
        pids, is_first = self._pids(), self.asked_by is None
        self.asked_by = signal_name(number)
        if not pids:
            raise Interrupted(self.asked_by)
        if is_first:
            say_heard(self.asked_by)  # the ranks' stderr goes to the log
        timer = threading.Timer(self._grace_s + _SAVING_S if is_first else _AFTER_SECOND_REQUEST_S, self._kill)
        timer.daemon = True
        timer.start()
        self._timers.append(timer)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                # A rank would take SIGINT for Ctrl-C at its own terminal.
                os.kill(pid, signal.SIGTERM if number == signal.SIGINT else number)

    def leave(self, number: int) -> None:
        """End the process at once if no rank runs: torch waits for other machines and lets no Python handler run."""
        if self._pids():
            return
        print(f"stopped by {signal_name(number)}: nothing was being trained", file=sys.stderr, flush=True)
        os._exit(EXIT_PREEMPTED)

    @contextlib.contextmanager
    def heard(self) -> Iterator[None]:
        """Open a context in which this process hands signals to the agent's ranks, and the ranks die with it."""
        handlers = dict.fromkeys((signal.SIGTERM, signal.SIGUSR1, signal.SIGINT), self.ask)
        # torch installs its own handlers for the signals named in this variable.
        variables = {PARENT: str(os.getpid()), "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGQUIT"}
        with environment(variables), heard_in_time({**handlers, signal.SIGHUP: signal.SIG_IGN}, self.leave):
            try:
                yield
            finally:
                for timer in self._timers:
                    timer.cancel()

    def _kill(self) -> None:
        self.is_late = True
        for pid in self._pids():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)

    def _pids(self) -> list[int]:
        return [int(worker.id) for worker in self._agent.get_worker_group().workers if worker.id]


def run_ranks(
    folder: RunFolder, plan: LaunchPlan, launch: Launch, *, store: TCPStore, look: Callable[[], object] = bool
) -> RanksEnd:
    """Run the ranks of a plan to their end. `look` is called ten times a second and may raise ServerEnded."""
    machine = OneMachine(store, plan.log.parent.name, look)
    command, *words = plan.argv
    spec = WorkerSpec("rank", len(plan.ranks), machine, entrypoint=command, args=tuple(words), max_restarts=0)
    agent = _agent(spec, exit_barrier_s=_LOOK_EVERY_S)
    failures: dict[int, ProcessFailure] = {}
    requests = StopRequests(agent, launch.grace_s)
    with _logged_to(plan.log), environment(plan.shared), requests.heard(), contextlib.suppress(ServerEnded):
        failures = agent.run().failures
    codes = {rank: (failure.exitcode, float(failure.timestamp)) for rank, failure in failures.items()}
    found = failures_of(folder, codes, log=plan.log, seen_at=machine.seen_at)
    return RanksEnd(found, requests.asked_by, requests.is_late)


def run_as_torchrun(words: list[str]) -> int:
    """Start this machine's ranks by torchrun's options (PET_*), each as `rlhf` with these words. Return the exit code.

    Raise ConfigError if torchrun refuses an option.
    """
    try:
        config, _, _ = config_from_args(parse_args(["--no-python", "rlhf"]))
        meeting = (config.rdzv_backend, config.rdzv_endpoint, config.run_id, config.min_nodes, config.max_nodes)
        parameters = RendezvousParameters(*meeting, local_addr=config.local_addr, **config.rdzv_configs)
        if config.max_nodes == 1:  # no other machine comes, and an address from outside may be an earlier launcher's
            store = listening_store()
            handler: RendezvousHandler = OneMachine(store, config.run_id, bool)
            place: tuple[str | None, int | None] = (store.host, store.port)
        else:
            place = _get_addr_and_port(parameters)
            handler = get_rendezvous_handler(parameters)
    except (ValueError, RuntimeError, AssertionError) as error:
        given = ", ".join(f"{name}={value}" for name, value in os.environ.items() if name.startswith("PET_"))
        what = f"torchrun's options in the environment are wrong: {str(error).partition(chr(10))[0]}"
        expected = "PET_NNODES, PET_NPROC_PER_NODE, and PET_MASTER_ADDR and PET_NODE_RANK, or PET_RDZV_ENDPOINT"
        raise ConfigError(what, where="environment", got=given, expected=expected) from None
    command, arguments = sys.executable, ("-m", "rlhf_cli", *words)
    spec = WorkerSpec("rank", config.nproc_per_node, handler, entrypoint=command, args=arguments)
    spec.max_restarts, spec.local_addr = config.max_restarts, config.local_addr
    spec.master_addr, spec.master_port = place
    agent = _agent(spec, exit_barrier_s=_EXIT_BARRIER_S)
    _AGENT_LOGGER.setLevel(logging.CRITICAL)  # no run has a folder yet, and the ranks say themselves why they ended
    with StopRequests(agent, Launch().grace_s).heard():
        try:
            failures = agent.run().failures
        finally:
            handler.shutdown()
    for rank, failure in failures.items():
        if failure.exitcode < 0 and failure.exitcode not in STOPPED:
            print(f"rank {rank} was killed by {signal_name(-failure.exitcode)}", file=sys.stderr, flush=True)
    codes = {failure.exitcode for failure in failures.values()} - {-signal.SIGTERM}
    if codes <= set(STOPPED):
        return EXIT_PREEMPTED if failures else EXIT_OK
    return EXIT_USER_ERROR if codes <= {*STOPPED, EXIT_USER_ERROR} else EXIT_CRASH


@contextlib.contextmanager
def _logged_to(log: Path) -> Iterator[None]:
    """Write the warnings of torch's agent to the run's log instead of the terminal; ranks report their own failures."""
    handler = logging.FileHandler(log, encoding="utf-8", delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    _AGENT_LOGGER.addHandler(handler)
    _AGENT_LOGGER.propagate = False
    try:
        yield
    finally:
        _AGENT_LOGGER.propagate = True
        _AGENT_LOGGER.removeHandler(handler)
        handler.close()


def _agent(spec: WorkerSpec, *, exit_barrier_s: float) -> LocalElasticAgent:
    spec.monitor_interval = _LOOK_EVERY_S
    # Ranks log and record failures themselves: torch's files hold whole seconds, and end its launcher on a full disk.
    logs = DefaultLogsSpecs(os.devnull)
    return LocalElasticAgent(spec, logs, exit_barrier_timeout=exit_barrier_s, shutdown_timeout=_SHUTDOWN_S)
