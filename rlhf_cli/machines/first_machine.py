"""Trains a run of several machines from the first: opens the place where they meet, waits for the others, trains.

Whoever joins (machines/joining.py) starts the ranks of its machine by the same plan. What became of the run is
decided and written here alone.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import time
from collections.abc import Iterator

from rich.console import Console

from rlhf_cli.config.schema.launch_section import Launch
from rlhf_cli.errors import CTRL_C, EXIT_CRASH, EXIT_OK, ConfigError, RlhfError, RunError
from rlhf_cli.launch.local import conclude, forget_failures, planned
from rlhf_cli.launch.preemption import preempted
from rlhf_cli.launch.ranks import started
from rlhf_cli.launch.stopping import interrupted_by_signals
from rlhf_cli.machines.machine_line import EVERY_S, LOST_S, LOST_WHEN_FAILING_S, Line, Meeting, opened
from rlhf_cli.machines.machine_words import (
    Offer,
    Said,
    Verdict,
    encode,
    forget_secret,
    is_proof,
    make_secret,
    proof,
    versions,
)
from rlhf_cli.machines.ranks_together import Together
from rlhf_cli.plan.launch_plan import LaunchPlan
from rlhf_cli.plan.meeting_place import meeting_place
from rlhf_cli.plan.network_interface import towards
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_status import FAILED, PREEMPTED, update_status

JOIN_TIMEOUT_S = 900.0
"""So long the first machine waits for the others, and they for the first."""
MEETS_AT = "RLHF_MEETS_AT"
"""The variable by which a job of Slurm says where its machines meet."""

_FAREWELLS_S = 10.0


def run_on_several(folder: RunFolder, console: Console, *, resume: bool) -> None:
    """Train the run in `folder` to its end, on this machine and on those that join in time.

    Raises Preempted, RunError where not all machines came, or what made the first rank fail, on whichever machine.
    """
    plan, launch = planned(folder, resume=resume, meets_at=os.environ.get(MEETS_AT))
    place = meeting_place(plan.meets_at or "")
    if place is None:
        raise ConfigError("the machines of this run have nowhere to meet", where="launch.rdzv", got=str(plan.meets_at))
    try:
        meeting = opened(place)
    except OSError as error:
        raise ConfigError(
            "the machines cannot meet where they should",
            where="launch.rdzv",
            got=f"{place}: {error.strerror or error}",
            expected="an address of this machine, and a port that is free",
            hint=f"rlhf resume {folder.shown} launch.rdzv={socket.gethostname()}:{place.port + 1}",
        ) from None
    plan = plan.having(towards(place.host))
    with _line(folder, meeting, plan, resume=resume) as (line, secret):
        verdict = Verdict(EXIT_CRASH, f"the command on {socket.gethostname()} ended without a last word")
        try:
            _wait_for_all(folder, console, plan, meeting, line, secret)
            _train(folder, plan, line, launch)
            verdict = Verdict(EXIT_OK, "the run has finished")
        except RlhfError as error:
            verdict = Verdict(error.exit_code, str(error))
            raise
        finally:
            line.tell(verdict=verdict, is_done=True)
            _wait_for_farewells(line)


@contextlib.contextmanager
def _line(folder: RunFolder, meeting: Meeting, plan: LaunchPlan, *, resume: bool) -> Iterator[tuple[Line, str]]:
    """Offer the run to other machines inside the block; yield the line to them and the folder's secret."""
    secret, host, name = make_secret(folder), socket.gethostname(), secrets.token_hex(8)
    line = Line(meeting, 0, range(1, plan.num_nodes), Said(name, host, proof(secret, name)))
    try:
        offer = Offer(
            run=str(folder.path),
            mark=proof(secret, str(folder.path)),
            host=host,
            nodes=plan.num_nodes,
            processes=len(plan.ranks),
            on_gpus=bool(plan.gpus),
            resume=resume,
            versions=versions(),
        )
        meeting.offer(encode(offer))
        yield line, secret
    finally:
        line.close()
        forget_secret(folder)


def _wait_for_all(
    folder: RunFolder,
    console: Console,
    plan: LaunchPlan,
    meeting: Meeting,
    line: Line,
    secret: str,
) -> None:
    """Wait until every machine is there, show for whom, and say that it begins."""
    others = plan.num_nodes - 1
    if MEETS_AT in os.environ:
        console.print(f"this is machine 1 of {plan.num_nodes}; srun lets the others join at {plan.meets_at}")
    else:
        which = "the other one" if others == 1 else "each of the others"
        console.print(f"this is machine 1 of {plan.num_nodes}; on {which} type")
        console.print(f"  rlhf join {plan.meets_at}", markup=False, highlight=False, soft_wrap=True)
    began, here = time.monotonic(), dict[int, str]()
    try:
        with interrupted_by_signals(), console.status("") as bar:
            while len(here) < others:
                seconds = time.monotonic() - began
                missing = others - len(here)
                bar.update(
                    f"waiting for {missing} of {others} at {plan.meets_at}: {seconds:.0f} of {JOIN_TIMEOUT_S:.0f} s"
                )
                if seconds > JOIN_TIMEOUT_S:
                    raise _nobody_came(folder, plan, here, line)
                time.sleep(EVERY_S)
                _look_who_is_there(console, plan, meeting, line, secret, here)
    except KeyboardInterrupt as stop:
        reason = str(stop) or CTRL_C
        update_status(folder, state=PREEMPTED, reason=f"{reason} while it waited for other machines")
        raise preempted(folder, reason) from None
    forget_failures(folder)
    line.tell(is_begun=True)


def _look_who_is_there(
    console: Console, plan: LaunchPlan, meeting: Meeting, line: Line, secret: str, here: dict[int, str]
) -> None:
    """Bring `here` (place -> name of the machine that has it) up to date; a machine that has gone leaves its place."""
    for place, heard in list(line.heard.items()):
        said = heard.said
        is_there = not said.has_left and line.silent_s(place) < LOST_S and is_proof(said.proof, secret, said.name)
        if is_there and here.get(place) != said.name:
            here[place] = said.name
            line_of_it = f"machine {place + 1} of {plan.num_nodes}: {said.host}"
            console.print(line_of_it, markup=False, highlight=False)
        elif not is_there:
            meeting.free_place(place, said.name)
            if here.pop(place, None) is not None:
                console.print(f"{said.host} has gone again", markup=False, highlight=False)


def _nobody_came(folder: RunFolder, plan: LaunchPlan, here: dict[int, str], line: Line) -> RunError:
    hosts = [socket.gethostname(), *(line.heard[place].said.host for place in sorted(here))]
    reason = f"{plan.num_nodes - len(hosts)} of {plan.num_nodes} machines did not come within {JOIN_TIMEOUT_S:.0f} s"
    update_status(folder, state=FAILED, reason=reason)
    return RunError(
        reason,
        where=f"{plan.meets_at} (launch.rdzv)",
        got=f"here: {', '.join(hosts)}",
        expected=f"`rlhf join {plan.meets_at}` on each of the others, which reach that address",
        hint=plan.resume_command,
    )


def _train(folder: RunFolder, plan: LaunchPlan, line: Line, launch: Launch) -> None:
    together, grace_s = Together(line, plan, folder, launch.hang_timeout_s), launch.grace_s
    with plan.log.open("a", encoding="utf-8") as log, started(plan.ranks, stderr=log, grace_s=grace_s) as ranks:
        ranks.wait(lambda: together.look(ranks))
        together.look(ranks)
        together.wait(ranks, together.all_are_done)
        asked_by = line.says.asked_by if ranks.asked else None
        ended, first = together.all_ended(ranks), together.first_failure()
    conclude(folder, ended, first, num_ranks=plan.world_size, asked_by=asked_by, grace_s=grace_s)


def _wait_for_farewells(line: Line) -> None:
    """Keep the store until every machine that is still there knows what became of the run."""
    until = time.monotonic() + _FAREWELLS_S
    while time.monotonic() < until and any(
        not one.said.has_left and line.silent_s(place) < LOST_WHEN_FAILING_S for place, one in line.heard.items()
    ):
        time.sleep(EVERY_S)
