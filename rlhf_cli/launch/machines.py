"""Train one run on several machines: wait for them, start the ranks of this one, conclude together.

torch's elastic agent starts the ranks of every machine (launch/elastic.py), and the ranks agree on when to stop. torch
has no notice from one machine to another that its ranks have failed or that it is gone: every machine keeps its state
in the store of the first, reads that of the others, and ends its ranks when the run has ended elsewhere.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from functools import cache

from pydantic import TypeAdapter
from rich.console import Console
from torch.distributed import TCPStore

from rlhf_cli.config.schema.launch_sections import Launch
from rlhf_cli.errors import CTRL_C, EXIT_CRASH, EXIT_OK, ConfigError, RlhfError, RunError
from rlhf_cli.launch.elastic import OtherMachineEnded, listening_store, run_ranks
from rlhf_cli.launch.ranks_end import RankFailure, RanksEnd, conclude, forget_failures
from rlhf_cli.launch.stopping import preempted
from rlhf_cli.plan.launch_plan import MEETS_AT, LaunchPlan
from rlhf_cli.plan.network import MeetingPlace, meeting_place, towards
from rlhf_cli.process import handled
from rlhf_cli.runs.provenance import versions
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_status import FAILED, PREEMPTED, update_status
from rlhf_cli.text.redaction import redacted

JOIN_TIMEOUT_S = 900.0
"""The first machine waits for the others this long, and they for the first."""
LOST_S = 15.0
"""A machine whose state has not changed for this long is gone."""
LOST_WHEN_ENDING_S = 5.0
"""The same once some rank has failed: that is most likely why."""
EVERY_S = 0.2
ANSWER_S = 10.0
OFFER, PLACE, _STATE = "rlhf/offer", "rlhf/place/", "rlhf/state/"
TOKEN_FILE = ".meeting.json"
PACKAGES = ("rlhf", "python", "torch", "trl", "transformers", "accelerate", "peft")
"""What has to be of one version on all machines; another Python is a warning."""


@dataclass(frozen=True)
class Offer:
    """What the first machine tells the others: the run, and what each machine starts.

    `token` is in a file of the run folder, so that the others know whether they see the same folder.
    """

    run: str
    token: str
    host: str
    nodes: int
    processes: int
    on_gpus: bool
    resume: bool
    versions: dict[str, str | None]


@dataclass(frozen=True)
class RunVerdict:
    """The exit code of the first machine's command, and its message."""

    exit_code: int
    message: str


@dataclass(frozen=True)
class MachineState:
    """What a machine tells the others. `name` is new for every command, and `beat` counts how often it was told.

    `end` is how its ranks ended, None while they run. `is_ending`: ranks have failed, here or elsewhere. Only the first
    machine sets `is_begun` and `verdict`.
    """

    name: str
    host: str
    beat: int = 0
    is_begun: bool = False
    is_ending: bool = False
    end: RanksEnd | None = None
    has_left: bool = False
    verdict: RunVerdict | None = None


@cache
def _state_type() -> TypeAdapter[MachineState]:
    return TypeAdapter(MachineState)


def store_at(place: MeetingPlace) -> TCPStore:
    """Return a client of the store that the first machine opened. Raises RuntimeError if there is none."""
    return TCPStore(place.host, place.port, None, False, timedelta(seconds=ANSWER_S), wait_for_workers=False)


class Link:
    """A thread that tells the others the state of this machine and reads theirs.

    A call to the store blocks while the network is down, so the main thread, which hears signals, makes none.
    `problem` is why the store cannot be reached any more, None while it can.
    """

    def __init__(self, place: MeetingPlace, node: int, others: Sequence[int], state: MachineState) -> None:
        self.problem: str | None = None
        self.state = state
        self.states: dict[int, MachineState] = {}
        self.heard_at: dict[int, float] = {}
        """Machine -> when its state last changed, on the monotonic clock."""
        self._store, self._node, self._others = store_at(place), node, others
        self._exchanged_at = time.monotonic()
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="machine link", daemon=True)
        self._thread.start()

    def tell(self, **changes: object) -> None:
        """Update the state with `changes`; the others read it within a second."""
        self.state = replace(self.state, **changes)  # type: ignore[arg-type]

    def silent_s(self, node: int) -> float:
        """Return for how long a machine has been silent, in seconds; infinity if the store is gone."""
        if self.problem is not None:
            return float("inf")
        stuck = time.monotonic() - self._exchanged_at
        return max(stuck, self._exchanged_at - self.heard_at.get(node, self._exchanged_at))

    def close(self) -> None:
        """Tell the last state, and nothing after it."""
        self._is_closed.set()
        self._thread.join(2.0)
        if not self._thread.is_alive() and self.problem is None:
            with contextlib.suppress(RuntimeError):
                self._exchange()

    def _run(self) -> None:
        while not self._is_closed.wait(EVERY_S):
            try:
                self._exchange()
            except RuntimeError as error:  # torch's DistError is one
                self.problem = str(error).splitlines()[0]
                return

    def _exchange(self) -> None:
        self.state = replace(self.state, beat=self.state.beat + 1)
        self._store.set(f"{_STATE}{self._node}", json.dumps(asdict(self.state)))
        for node in self._others:
            if self._store.check([f"{_STATE}{node}"]):
                state = _state_type().validate_json(bytes(self._store.get(f"{_STATE}{node}")))
                before = self.states.get(node)
                if before is None or (before.name, before.beat) != (state.name, state.beat):
                    self.states[node], self.heard_at[node] = state, time.monotonic()
        self._exchanged_at = time.monotonic()


@dataclass
class Machines:
    """The other machines of a run while ranks train. `lost` maps a machine that is gone to when it was last heard."""

    link: Link
    plan: LaunchPlan
    folder: RunFolder
    lost: dict[int, float] = field(default_factory=dict)

    def look(self) -> None:
        """Raise OtherMachineEnded if ranks on another machine have failed, or a machine is gone."""
        self.find_lost()
        states = self.link.states.values()
        if self.lost or any(state.is_ending or (state.end and state.end.failures) for state in states):
            self.link.tell(is_ending=True)
            raise OtherMachineEnded

    def find_lost(self) -> None:
        """Note the machines that have been silent for too long, or left before the run was over."""
        limit_s = LOST_WHEN_ENDING_S if self.link.state.is_ending else LOST_S
        for node, state in self.link.states.items():
            is_gone = self.link.silent_s(node) > limit_s or (state.has_left and self.link.state.verdict is None)
            if node not in self.lost and state.end is None and is_gone:
                self.lost[node] = time.time() - (time.monotonic() - self.link.heard_at[node])

    def run_ranks(self, launch: Launch, store: TCPStore) -> RanksEnd:
        """Run the ranks of this machine, tell the others how they ended, and return it."""
        end = run_ranks(self.folder, self.plan, launch, store=store, look=self.look)
        host = self.link.state.host
        failures = [
            replace(one, message=redacted(one.message), traceback=redacted(one.traceback), host=host)
            for one in end.failures
        ]
        asked_by = f"{end.asked_by} on {host}" if end.asked_by else None
        end = replace(end, failures=failures, asked_by=asked_by)
        self.link.tell(end=end, is_ending=bool(failures))
        return end

    def all_ended(self, own: RanksEnd) -> RanksEnd:
        """Wait until the ranks of all machines have ended, and return how."""
        while any(state.end is None and node not in self.lost for node, state in self.link.states.items()):
            time.sleep(EVERY_S)
            self.find_lost()
            if self.lost:
                self.link.tell(is_ending=True)
        ends = [own, *(state.end for state in self.link.states.values() if state.end is not None)]
        return RanksEnd(
            [*(one for end in ends for one in end.failures), *map(self._gone, self.lost)],
            next((end.asked_by for end in ends if end.asked_by), None),
            any(end.is_late for end in ends),
        )

    def _gone(self, node: int) -> RankFailure:
        first, last = node * len(self.plan.ranks), (node + 1) * len(self.plan.ranks) - 1
        which = "" if first == last else f" with ranks {first} to {last}"
        seconds = time.time() - self.lost[node]
        message = f"is gone: nothing was heard of its machine{which} for {seconds:.0f} s"
        return RankFailure(first, self.lost[node], message, host=self.link.states[node].host)


def run_on_several(folder: RunFolder, console: Console, plan: LaunchPlan, launch: Launch, *, resume: bool) -> None:
    """Train the run in `folder` to its end, on this machine and on those that join in time.

    Raises Preempted, RunError if not all machines came, or the error of the rank that failed first on any machine.
    """
    place = meeting_place(plan.meets_at or "")
    if place is None:
        raise ConfigError("the machines of this run have nowhere to meet", where="launch.rdzv", got=str(plan.meets_at))
    try:
        store = listening_store(place)
    except OSError as error:
        raise ConfigError(
            "the machines cannot meet where they should",
            where="launch.rdzv",
            got=f"{place}: {error.strerror or error}",
            expected="an address of this machine, and a port that is free",
            hint=f"rlhf resume {folder.shown} launch.rdzv={socket.gethostname()}:{place.port + 1}",
        ) from None
    plan = plan.having(towards(place.host))
    with _offered(folder, place, store, plan, resume=resume) as link:
        verdict = RunVerdict(EXIT_CRASH, f"the command on {socket.gethostname()} ended without a last word")
        try:
            _wait_for_all(folder, console, plan, store, link)
            machines = Machines(link, plan, folder)
            conclude(folder, machines.all_ended(machines.run_ranks(launch, store)), grace_s=launch.grace_s)
            verdict = RunVerdict(EXIT_OK, "the run has finished")
        except RlhfError as error:
            verdict = RunVerdict(error.exit_code, str(error))
            raise
        finally:
            link.tell(verdict=verdict)
            wait(lambda: all(one.has_left or link.silent_s(node) > 3 for node, one in link.states.items()), ANSWER_S)


@contextlib.contextmanager
def _offered(
    folder: RunFolder, place: MeetingPlace, store: TCPStore, plan: LaunchPlan, *, resume: bool
) -> Iterator[Link]:
    """Offer the run to other machines inside the block; yield the link to them."""
    token, host, file = secrets.token_hex(16), socket.gethostname(), folder.path / TOKEN_FILE
    file.write_text(json.dumps({"token": token}), encoding="utf-8")
    link = Link(place, 0, range(1, plan.num_nodes), MachineState(secrets.token_hex(8), host))
    offer = Offer(
        run=str(folder.path),
        token=token,
        host=host,
        nodes=plan.num_nodes,
        processes=len(plan.ranks),
        on_gpus=bool(plan.gpus),
        resume=resume,
        versions={name: versions().get(name) for name in PACKAGES},
    )
    try:
        store.set(OFFER, json.dumps(asdict(offer)))
        yield link
    finally:
        link.close()
        file.unlink(missing_ok=True)


def _wait_for_all(folder: RunFolder, console: Console, plan: LaunchPlan, store: TCPStore, link: Link) -> None:
    """Wait until every machine has joined, and tell them that the run begins."""
    others = plan.num_nodes - 1
    if MEETS_AT in os.environ:
        console.print(f"this is machine 1 of {plan.num_nodes}; srun lets the others join at {plan.meets_at}")
    else:
        which = "the other one" if others == 1 else "each of the others"
        console.print(f"this is machine 1 of {plan.num_nodes}; on {which} type")
        console.print(f"  rlhf join {plan.meets_at}", markup=False, highlight=False, soft_wrap=True)
    began, joined = time.monotonic(), dict[int, str]()
    try:
        with handled({signal.SIGHUP: signal.SIG_IGN}), console.status("") as bar:
            while len(joined) < others:
                seconds, missing = time.monotonic() - began, others - len(joined)
                bar.update(
                    f"waiting for {missing} of {others} at {plan.meets_at}: {seconds:.0f} of {JOIN_TIMEOUT_S:.0f} s"
                )
                if seconds > JOIN_TIMEOUT_S:
                    reason = f"{missing} of {plan.num_nodes} machines did not come within {JOIN_TIMEOUT_S:.0f} s"
                    update_status(folder, state=FAILED, reason=reason)
                    here = [socket.gethostname(), *(link.states[node].host for node in sorted(joined))]
                    raise RunError(
                        reason,
                        where=f"{plan.meets_at} (launch.rdzv)",
                        got=f"here: {', '.join(here)}",
                        expected=f"`rlhf join {plan.meets_at}` on each of the others, which reach that address",
                        hint=plan.resume_command,
                    )
                time.sleep(EVERY_S)
                _update_joined(console, plan, store, link, joined)
    except KeyboardInterrupt as stop:
        reason = str(stop) or CTRL_C
        update_status(folder, state=PREEMPTED, reason=f"{reason} while it waited for other machines")
        raise preempted(folder, reason) from None
    forget_failures(folder)
    link.tell(is_begun=True)


def _update_joined(console: Console, plan: LaunchPlan, store: TCPStore, link: Link, joined: dict[int, str]) -> None:
    """Update `joined` (machine -> its command's name); a machine that has gone frees its place."""
    for node, state in list(link.states.items()):
        is_there = not state.has_left and link.silent_s(node) < LOST_S
        if is_there and joined.get(node) != state.name:
            joined[node] = state.name
            console.print(f"machine {node + 1} of {plan.num_nodes}: {state.host}", markup=False, highlight=False)
        elif not is_there:
            store.compare_set(f"{PLACE}{node}", state.name, "")
            if joined.pop(node, None) is not None:
                console.print(f"{state.host} has gone again", markup=False, highlight=False)


def wait(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Wait until the condition is true, and return whether it became so in time."""
    until = time.monotonic() + timeout_s
    while not (is_true := condition()) and time.monotonic() < until:
        time.sleep(EVERY_S)
    return is_true
