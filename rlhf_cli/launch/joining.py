"""Make this machine one of several that train a run: find the first, check that both can train it, train.

What the first machine says is data: which folder, how many ranks, how the others are doing. This machine runs its own
installation on a folder that it sees itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter
from rich.console import Console
from torch.distributed import TCPStore

from rlhf_cli.config.schema.launch_sections import Launch
from rlhf_cli.errors import (
    EXIT_OK,
    EXIT_PREEMPTED,
    EXIT_USER_ERROR,
    ConfigError,
    Preempted,
    RankFailed,
    RunError,
    UserError,
)
from rlhf_cli.launch import machines
from rlhf_cli.launch.elastic import STORE_TIMEOUT
from rlhf_cli.launch.freeze import plan_frozen
from rlhf_cli.launch.machines import (
    EVERY_S,
    OFFER,
    PLACE,
    TOKEN_FILE,
    Link,
    Machines,
    MachineState,
    Offer,
    store_at,
    wait,
)
from rlhf_cli.plan.launch_plan import LaunchPlan
from rlhf_cli.plan.network import MeetingPlace, towards, why_not_reached
from rlhf_cli.process import handled
from rlhf_cli.runs.provenance import versions
from rlhf_cli.runs.run_folder import RunFolder

_SHARED_FOLDER_S = 5.0
"""A network file system may show a new file a moment later."""


@dataclass(frozen=True)
class Invitation:
    """A run that this machine may join, with its store and its folder."""

    place: MeetingPlace
    store: TCPStore
    offer: Offer
    folder: RunFolder


def find_run_to_join(place: MeetingPlace, console: Console) -> Invitation:
    """Wait for the first machine at `place` and return the run that it offers.

    Raises ConfigError for an unknown host, and RunError if nothing or something else answers there, if this machine
    does not see the run folder, or if it has other versions of the training libraries.
    """
    if not place.is_known():
        raise ConfigError(
            "the first machine is not known here",
            got=str(place),
            expected="its name or address as this machine reaches it",
            hint="rlhf join HOST:PORT",
        )
    _wait_for_first(place, console)
    no_run = f"at {place} is no run that waits for machines"
    expected = "`rlhf train ... launch.nodes=2 launch.rdzv=HOST:PORT` on that machine, of the same version"
    try:
        store = store_at(place)
    except RuntimeError as error:
        raise RunError(no_run, got=str(error).splitlines()[0], expected=expected) from None
    try:
        offer = read_offer(store.get(OFFER))
        store.set_timeout(STORE_TIMEOUT)
    except (RuntimeError, ValueError):
        raise RunError(no_run, got="a store of torch that offers no run", expected=expected) from None
    _refuse_other_versions(offer)
    return Invitation(place, store, offer, _same_folder(offer))


def read_offer(text: bytes) -> Offer:
    """Return the offer in a JSON text. Raises ValueError if it is something else."""
    return TypeAdapter(Offer).validate_json(text)


def _wait_for_first(place: MeetingPlace, console: Console) -> None:
    began = time.monotonic()
    console.print(f"looking for the first machine at {place}", markup=False, highlight=False)
    with console.status("") as bar:
        while (reason := why_not_reached(place.host, place.port)) is not None:
            seconds = time.monotonic() - began
            if seconds > machines.JOIN_TIMEOUT_S:
                raise RunError(
                    "the first machine does not answer",
                    where=str(place),
                    got=f"{reason}, for {seconds:.0f} s",
                    expected="`rlhf train ... launch.nodes=2 launch.rdzv=HOST:PORT`, which waits there",
                    advice="start it, and look whether a firewall lets this port through",
                )
            bar.update(f"it does not answer yet ({reason}): {seconds:.0f} of {machines.JOIN_TIMEOUT_S:.0f} s")
            time.sleep(EVERY_S)


def _refuse_other_versions(offer: Offer) -> None:
    here = versions()
    differ = {
        name: f"{name}: {here.get(name)} here, {theirs} on {offer.host}"
        for name, theirs in offer.versions.items()
        if theirs != here.get(name)
    }
    if differ.keys() - {"python"}:
        raise RunError(
            "the machines have other versions of what trains",
            where=socket.gethostname(),
            got="\n".join(differ.values()),
            expected="the same Python environment on all of them",
        )
    for line in differ.values():
        print(f"warning: {line}")


def _same_folder(offer: Offer) -> RunFolder:
    """Return the run folder. Raises RunError if the folder at that path is not the first machine's."""
    folder = RunFolder(Path(offer.run))

    def is_same() -> bool:
        with contextlib.suppress(OSError, ValueError):
            read = json.loads((folder.path / TOKEN_FILE).read_text(encoding="utf-8"))
            return folder.config.is_file() and bool(read == {"token": offer.token})
        return False

    if not wait(is_same, _SHARED_FOLDER_S):
        raise RunError(
            "this machine does not see the folder of the run",
            where=offer.run,
            got=f"another folder of that name than {offer.host} has" if folder.path.is_dir() else "no such folder",
            expected="a file system that all machines share, under the same path",
            advice=f"run.root=/a/shared/folder on {offer.host}",
        )
    return folder


def join_run(invitation: Invitation, console: Console) -> None:
    """Take a place among the machines of the run, and train it to its end.

    Raises RunError if no place is left or this machine is no match for the first, and otherwise what the run ended
    with: Preempted, UserError, RankFailed.
    """
    offer, folder, store = invitation.offer, invitation.folder, invitation.store
    plan, launch = _plan_like_first(invitation)
    name = secrets.token_hex(8)
    places = range(1, offer.nodes)
    node = next((one for one in places if store.compare_set(f"{PLACE}{one}", "", name).decode() == name), None)
    if node is None:
        raise RunError(
            f"all {offer.nodes} machines of this run are there already",
            where=str(invitation.place),
            got=f"one more: {socket.gethostname()}",
            advice=f"launch.nodes={offer.nodes + 1} on {offer.host}, or wait until it has ended",
        )
    plan = plan.on_machine(node)
    link = Link(invitation.place, node, [0], MachineState(name, socket.gethostname()))
    try:
        console.print(f"run folder: {folder.shown}", markup=False, highlight=False, soft_wrap=True)
        _wait_for_begin(console, link, node, offer)
        first, last = plan.ranks[0].rank, plan.ranks[-1].rank
        ranks = f"rank {first}" if first == last else f"ranks {first} to {last}"
        console.print(
            f"machine {node + 1} of {offer.nodes}: {ranks} of {plan.world_size}; progress is shown on {offer.host}",
            highlight=False,
        )
        Machines(link, plan, folder).run_ranks(launch, store)
        while link.states[0].verdict is None and link.silent_s(0) < machines.LOST_S:
            time.sleep(EVERY_S)
        _conclude_as_first(invitation, link, console)
    finally:
        link.tell(has_left=True)
        link.close()


def _plan_like_first(invitation: Invitation) -> tuple[LaunchPlan, Launch]:
    """Return the plan for this machine as if it were the second, and the run's launch settings.

    Raises RunError if it differs from the first machine's.
    """
    offer = invitation.offer
    plan, launch = plan_frozen(invitation.folder, resume=offer.resume, node=1, meets_at=str(invitation.place))
    gpus = len(plan.gpus)
    wanted = offer.processes if offer.on_gpus else 0
    if len(plan.ranks) != offer.processes or gpus != wanted:
        there = f" on {wanted} GPUs" if wanted else " on the CPU, as on"
        raise RunError(
            "this machine is no match for the first",
            where=socket.gethostname(),
            got=f"{len(plan.ranks)} processes" + (f" on {gpus} GPUs" if gpus else ", no GPU"),
            expected=f"{offer.processes} processes{there} {offer.host}",
            advice=f"launch.processes={gpus} on {offer.host}"
            if 0 < gpus < wanted
            else "CUDA_VISIBLE_DEVICES, on either",
        )
    return plan.having(towards(invitation.place.host)), launch


def _wait_for_begin(console: Console, link: Link, node: int, offer: Offer) -> None:
    """Wait until all machines are there. Raises RunError if the first machine gave up or is gone."""
    began = time.monotonic()
    with handled({signal.SIGHUP: signal.SIG_IGN}), console.status("") as bar:
        while (first := link.states.get(0)) is None or not first.is_begun:
            seconds = time.monotonic() - began
            bar.update(f"machine {node + 1} of {offer.nodes}, waiting for the others: {seconds:.0f} s")
            if first is not None and first.verdict is not None:
                raise RunError(f"{offer.host} has given up: {first.verdict.message}")
            if link.silent_s(0) > machines.LOST_S:
                raise RunError(f"{offer.host}, the first machine, is gone", got=link.problem)
            time.sleep(EVERY_S)


def _conclude_as_first(invitation: Invitation, link: Link, console: Console) -> None:
    """Print what the first machine made of the run. Raises the error that its command ended with."""
    offer, verdict = invitation.offer, link.states[0].verdict
    if verdict is None:
        raise RankFailed(
            f"{offer.host}, the first machine, is gone: the ranks here were ended",
            where=offer.run,
            got=link.problem or f"nothing was heard of it for {machines.LOST_S:.0f} s",
            advice=f"rlhf resume {os.path.relpath(offer.run)} there, and rlhf join {invitation.place} here",
        )
    if verdict.exit_code == EXIT_OK:
        console.print(f"{verdict.message}; {offer.host} shows how", highlight=False)
        return
    kind = {EXIT_PREEMPTED: Preempted, EXIT_USER_ERROR: UserError}.get(verdict.exit_code, RankFailed)
    raise kind(verdict.message)
