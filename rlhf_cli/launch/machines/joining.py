"""Makes this machine one of several that train a run: finds the first, sees that both have the same run, trains.

What it is told is data: which folder, how many ranks, how the others are doing. It runs the worker of its own
installation on a folder that it sees itself, and whose secret the first machine has shown to know.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from rlhf_cli.config.schema.launch_sections import Launch
from rlhf_cli.errors import (
    EXIT_OK,
    EXIT_PREEMPTED,
    EXIT_USER_ERROR,
    ConfigError,
    Preempted,
    Prose,
    RankFailed,
    RunError,
    UserError,
)
from rlhf_cli.launch.local import planned
from rlhf_cli.launch.machines.first_machine import JOIN_TIMEOUT_S, Together
from rlhf_cli.launch.machines.messages import (
    EVERY_S,
    LOST_S,
    Line,
    Meeting,
    Offer,
    Said,
    decode_offer,
    entered,
    is_proof,
    proof,
    read_secret,
    versions,
)
from rlhf_cli.launch.ranks import started
from rlhf_cli.launch.stopping import interrupted_by_signals
from rlhf_cli.plan.launch_plan import LaunchPlan
from rlhf_cli.plan.launch_problems import why_not_reached
from rlhf_cli.plan.network import MeetingPlace, towards
from rlhf_cli.runs.run_folder import RunFolder

_OFFER_S = 10.0
_SHARED_FOLDER_S = 5.0
"""A network's file system may show a new file a moment later."""
_MAY_DIFFER = ("python",)


@dataclass(frozen=True)
class Invitation:
    """A run that this machine may join: where it is offered, what is, and its folder, which has been seen."""

    place: MeetingPlace
    meeting: Meeting
    offer: Offer
    folder: RunFolder


def invited(place: MeetingPlace, console: Console) -> Invitation:
    """Wait for the first machine at `place`, as long as it would for this one, and return what it offers.

    Raises ConfigError for a host that nobody knows, RunError where nobody or something else answers, where this machine
    does not see the same run folder, or has other versions of what trains.
    """
    if not place.is_known():
        raise ConfigError(
            "the first machine is not known here",
            got=str(place),
            expected="its name or address as this machine reaches it",
            hint="rlhf join HOST:PORT",
        )
    _wait_for_first(place, console)
    meeting = entered(place)
    offer = _offer(place, meeting)
    _refuse_other_versions(offer)
    return Invitation(place, meeting, offer, _same_folder(offer))


def train_with_others(invitation: Invitation, console: Console) -> None:
    """Take a place among the machines of the run, and train it to its end.

    Raises RunError where no place is left or this machine is no match for the first, and otherwise what the run ended
    with: Preempted, UserError, RankFailed.
    """
    offer, folder, meeting = invitation.offer, invitation.folder, invitation.meeting
    name = secrets.token_hex(8)
    _planned(invitation, 1)  # what is refused is refused before a place is taken
    place = meeting.take_place(name, offer.nodes)
    if place is None:
        raise RunError(
            f"all {offer.nodes} machines of this run are there already",
            where=str(invitation.place),
            got=f"one more: {socket.gethostname()}",
            hint=Prose(f"launch.nodes={offer.nodes + 1} on {offer.host}, or wait until it has ended"),
        )
    plan, launch = _planned(invitation, place)
    secret = read_secret(folder) or ""
    line = Line(meeting, place, [0], Said(name, socket.gethostname(), proof(secret, name)))
    try:
        console.print(f"run folder: {folder.shown}", markup=False, highlight=False, soft_wrap=True)
        _wait_for_begin(console, line, place, offer)
        first, last = plan.ranks[0].rank, plan.ranks[-1].rank
        ranks = f"rank {first}" if first == last else f"ranks {first} to {last}"
        console.print(
            f"machine {place + 1} of {offer.nodes}: {ranks} of {plan.world_size}; progress is shown on {offer.host}",
            highlight=False,
        )
        _train(folder, plan, line, launch)
        _conclude(invitation, line, console)
    finally:
        line.tell(has_left=True, is_done=True)
        line.close()


def _planned(invitation: Invitation, place: int) -> tuple[LaunchPlan, Launch]:
    """Return what is started here, and what the run says of launching.

    Raises RunError where that is not what the first machine has.
    """
    offer, meets_at = invitation.offer, str(invitation.place)
    plan, launch = planned(invitation.folder, resume=offer.resume, node=place, meets_at=meets_at)
    gpus = len(plan.gpus)
    wanted = offer.processes if offer.on_gpus else 0
    if len(plan.ranks) != offer.processes or gpus != wanted:
        raise RunError(
            "this machine is no match for the first",
            where=socket.gethostname(),
            got=f"{len(plan.ranks)} processes" + (f" on {gpus} GPUs" if gpus else ", no GPU"),
            expected=f"{offer.processes} processes"
            + (f" on {wanted} GPUs" if wanted else " on the CPU, as on")
            + f" {offer.host}",
            hint=Prose(f"launch.processes={gpus} on {offer.host}")
            if 0 < gpus < wanted
            else Prose("CUDA_VISIBLE_DEVICES, on either"),
        )
    return plan.having(towards(invitation.place.host)), launch


def _wait_for_first(place: MeetingPlace, console: Console) -> None:
    began = time.monotonic()
    console.print(f"looking for the first machine at {place}", markup=False, highlight=False)
    with console.status("") as bar:
        while (reason := why_not_reached(place.host, place.port)) is not None:
            seconds = time.monotonic() - began
            if seconds > JOIN_TIMEOUT_S:
                raise RunError(
                    "the first machine does not answer",
                    where=str(place),
                    got=f"{reason}, for {seconds:.0f} s",
                    expected="`rlhf train ... launch.nodes=2 launch.rdzv=HOST:PORT`, which waits there",
                    hint=Prose("start it, and look whether a firewall lets this port through"),
                )
            bar.update(f"it does not answer yet ({reason}): {seconds:.0f} of {JOIN_TIMEOUT_S:.0f} s")
            time.sleep(EVERY_S)


def _offer(place: MeetingPlace, meeting: Meeting) -> Offer:
    until = time.monotonic() + _OFFER_S
    while (text := meeting.offered()) is None and time.monotonic() < until:
        time.sleep(EVERY_S)
    try:
        return decode_offer(text or b"")
    except ValueError:
        raise RunError(
            f"at {place} is no run that waits for machines",
            got="a store of torch's in which nothing is offered" if text is None else "words that are not ours",
            expected="`rlhf train ... launch.nodes=2 launch.rdzv=HOST:PORT` on that machine, of the same version",
        ) from None


def _refuse_other_versions(offer: Offer) -> None:
    here = versions()
    differ = [
        f"{name}: {here.get(name, 'none')} here, {theirs} on {offer.host}"
        for name, theirs in offer.versions.items()
        if theirs != here.get(name)
    ]
    if any(not line.startswith(_MAY_DIFFER) for line in differ):
        raise RunError(
            "the machines have other versions of what trains",
            where=socket.gethostname(),
            got="\n".join(differ),
            expected="the same Python environment on all of them",
        )
    for line in differ:
        print(f"warning: {line}")


def _same_folder(offer: Offer) -> RunFolder:
    """Return the run folder, which holds the secret that the first machine has shown to know."""
    folder, until = RunFolder(Path(offer.run)), time.monotonic() + _SHARED_FOLDER_S
    while True:
        secret = read_secret(folder) if folder.config.is_file() else None
        if secret is not None and is_proof(offer.mark, secret, offer.run):
            return folder
        if time.monotonic() > until:
            break
        time.sleep(EVERY_S)
    raise RunError(
        "this machine does not see the folder of the run",
        where=offer.run,
        got=f"another folder of that name than {offer.host} has" if folder.path.is_dir() else "no such folder",
        expected="a file system that all machines share, under the same path",
        hint=Prose(f"run.root=/a/shared/folder on {offer.host}"),
    )


def _wait_for_begin(console: Console, line: Line, place: int, offer: Offer) -> None:
    """Wait until all machines are there. Raises what the first machine gave up with."""
    began = time.monotonic()
    with interrupted_by_signals(), console.status("") as bar:
        while (heard := line.heard.get(0)) is None or not heard.said.is_begun:
            bar.update(
                f"machine {place + 1} of {offer.nodes}, waiting for the others: {time.monotonic() - began:.0f} s"
            )
            if heard is not None and heard.said.verdict is not None:
                raise RunError(f"{offer.host} has given up: {heard.said.verdict.message}")
            if line.silent_s(0) > LOST_S:
                raise RunError(f"{offer.host}, the first machine, is gone", got=line.broken)
            time.sleep(EVERY_S)


def _train(folder: RunFolder, plan: LaunchPlan, line: Line, launch: Launch) -> None:
    together = Together(line, plan, folder, launch.hang_timeout_s)
    with plan.log.open("a", encoding="utf-8") as log, started(plan.ranks, stderr=log, grace_s=launch.grace_s) as ranks:
        ranks.wait(lambda: together.look(ranks))
        together.look(ranks)
        together.wait(ranks, lambda: line.heard[0].said.verdict is not None)


def _conclude(invitation: Invitation, line: Line, console: Console) -> None:
    """Say what the first machine says of the run. Raises what its command ended with."""
    offer, verdict = invitation.offer, line.heard[0].said.verdict
    if verdict is None:
        raise RankFailed(
            f"{offer.host}, the first machine, is gone: the ranks here were ended",
            where=offer.run,
            got=line.broken or f"nothing was heard of it for {LOST_S:.0f} s",
            hint=Prose(f"rlhf resume {os.path.relpath(offer.run)} there, and rlhf join {invitation.place} here"),
        )
    if verdict.exit_code == EXIT_OK:
        console.print(f"{verdict.message}; {offer.host} shows how", highlight=False)
        return
    kind = {EXIT_PREEMPTED: Preempted, EXIT_USER_ERROR: UserError}.get(verdict.exit_code, RankFailed)
    raise kind(verdict.message)
