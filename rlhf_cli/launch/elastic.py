"""Run the ranks of this machine under torch's elastic agent, which is what torchrun and `elastic_launch` run.

torch starts the ranks, sets their variables, notices the first that fails and ends the others. Ours are three things
that its launcher has no setting for (docs/development/architecture.md, "torch's launcher starts the ranks"): the store
listens at one address, a request to stop reaches the ranks without their helper processes, and the first failure is
found to the tenth of a second.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import FrameType

from torch.distributed import Store, TCPStore
from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo

from rlhf_cli.config.schema.launch_sections import Launch
from rlhf_cli.errors import CTRL_C, Interrupted
from rlhf_cli.launch.ranks_end import RanksEnd, failures_of
from rlhf_cli.launch.stopping import say_heard
from rlhf_cli.plan.launch_plan import LaunchPlan
from rlhf_cli.plan.network import MeetingPlace
from rlhf_cli.process import PARENT, environment, handled
from rlhf_cli.runs.run_folder import RunFolder

_LOOK_EVERY_S = 0.1
_SHUTDOWN_S = 10
"""Seconds for the ranks here to end after another machine failed."""
_SAVING_S = 10.0
"""Seconds beyond the grace period before ranks are killed."""
_AFTER_SECOND_REQUEST_S = 3.0
STORE_TIMEOUT = timedelta(seconds=300)


class OtherMachineEnded(Exception):
    """Raised by `look` to end the ranks here, because the run ended elsewhere."""


def listening_store(place: MeetingPlace) -> TCPStore:
    """Return a new store that listens only at this address, at a free port for port 0.

    Raises OSError if it cannot listen there. torch's own rendezvous backends listen on all interfaces.
    """
    listening = place.listen()
    port = int(listening.getsockname()[1])
    descriptor = listening.detach()
    return TCPStore(place.host, port, None, True, STORE_TIMEOUT, wait_for_workers=False, master_listen_fd=descriptor)


class KnownMachines(RendezvousHandler):
    """The rendezvous of machines whose number, order and store are known before it begins.

    torch calls `num_nodes_waiting` after every look at living ranks: `seen_at` is when it last did, and `look` is
    called there.
    """

    def __init__(self, store: Store, place: MeetingPlace, plan: LaunchPlan, look: Callable[[], object]) -> None:
        self.seen_at = time.time()
        self._store, self._place, self._plan, self._look = store, place, plan, look

    use_agent_store = True

    def next_rendezvous(self) -> RendezvousInfo:
        address = RendezvousStoreInfo(self._place.host, self._place.port)
        return RendezvousInfo(self._store, self._plan.node, self._plan.num_nodes, address)

    def num_nodes_waiting(self) -> int:
        self.seen_at = time.time()
        self._look()
        return 0  # the number of machines never changes

    def get_backend(self) -> str:
        return "rlhf"

    def get_run_id(self) -> str:
        return self._plan.log.parent.name

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        """Do nothing: ranks are started once."""

    def shutdown(self) -> bool:
        return True  # the command closes the store


class StopRequests:
    """Hand requests to stop to the ranks, and kill ranks that do not end in time.

    torch would signal the whole process group of a rank, which ends data loaders and isolated rewards before the rank
    has saved.
    """

    def __init__(self, agent: LocalElasticAgent, grace_s: float) -> None:
        self.asked_by: str | None = None
        self.is_late = False
        self._agent, self._grace_s = agent, grace_s
        self._timers: list[threading.Timer] = []

    def ask(self, number: int, _: FrameType | None = None) -> None:
        """Ask every rank to stop; a second request leaves them only a moment.

        Raises Interrupted if no rank runs yet.
        """
        pids, is_first = self._pids(), self.asked_by is None
        self.asked_by = CTRL_C if number == signal.SIGINT else signal.Signals(number).name
        if not pids:
            raise Interrupted(self.asked_by)
        if is_first:
            say_heard(self.asked_by)  # the ranks' stderr goes to the log
        self._kill_in(self._grace_s + _SAVING_S if is_first else _AFTER_SECOND_REQUEST_S)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                # Send SIGTERM for SIGINT: a rank would treat SIGINT as Ctrl-C at its own terminal.
                os.kill(pid, signal.SIGTERM if number == signal.SIGINT else number)

    def close(self) -> None:
        """Cancel the timers."""
        for timer in self._timers:
            timer.cancel()

    def _kill_in(self, seconds: float) -> None:
        timer = threading.Timer(seconds, self._kill)
        timer.daemon = True
        timer.start()
        self._timers.append(timer)

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
    """Run the ranks of a plan to their end and return how they ended.

    `look` is called ten times a second and may raise OtherMachineEnded.
    """
    machines = KnownMachines(store, MeetingPlace(store.host, store.port), plan, look)
    command, *arguments = plan.ranks[0].argv
    spec = WorkerSpec(
        role="rank",
        local_world_size=len(plan.ranks),
        entrypoint=command,
        args=tuple(arguments),
        rdzv_handler=machines,
        max_restarts=0,
        monitor_interval=_LOOK_EVERY_S,
    )
    # Ranks append to the run's log and record failures themselves: torch's own files hold whole seconds only, and one
    # that a full disk cut off ends its launcher. The command waits for other machines, because it hears signals then.
    agent = LocalElasticAgent(
        spec, DefaultLogsSpecs(os.devnull), exit_barrier_timeout=_LOOK_EVERY_S, shutdown_timeout=_SHUTDOWN_S
    )
    requests = StopRequests(agent, launch.grace_s)
    handlers = dict.fromkeys((signal.SIGTERM, signal.SIGUSR1, signal.SIGINT), requests.ask)
    failures: dict[int, ProcessFailure] = {}
    # torch installs its own handlers for the signals named in this variable.
    variables = {**plan.shared, PARENT: str(os.getpid()), "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGQUIT"}
    with environment(variables), _logged(plan.log), handled({**handlers, signal.SIGHUP: signal.SIG_IGN}):
        try:
            failures = agent.run().failures
        except OtherMachineEnded:
            pass
        finally:
            requests.close()
    codes = {rank: (one.exitcode, float(one.timestamp)) for rank, one in failures.items()}
    found = failures_of(folder, codes, log=plan.log, seen_at=machines.seen_at)
    own = {rank.rank for rank in plan.ranks}
    return RanksEnd([one for one in found if one.rank in own], requests.asked_by, requests.is_late)


@contextlib.contextmanager
def _logged(file: Path) -> Iterator[None]:
    """Send the elastic agent's own messages to the run's log instead of the terminal."""
    logger = logging.getLogger("torch.distributed.elastic")
    handler = logging.FileHandler(file, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s launcher %(levelname)s %(name)s: %(message)s"))
    handler.addFilter(lambda record: "exit barrier" not in str(record.msg))  # see exit_barrier_timeout
    before, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = before
        handler.close()
