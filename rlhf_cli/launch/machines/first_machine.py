"""Train a run of several machines from the first of them.

Whoever joins (machines/joining.py) starts the ranks of its machine by the same plan. What became of the run is
decided and written here alone.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from operator import attrgetter

from rich.console import Console

from rlhf_cli.config.schema.launch_sections import Launch
from rlhf_cli.errors import CTRL_C, EXIT_CRASH, EXIT_OK, EXIT_PREEMPTED, ConfigError, RlhfError, RunError
from rlhf_cli.launch.local import conclude, forget_failures, planned
from rlhf_cli.launch.machines.messages import (
    EVERY_S,
    LOST_S,
    LOST_WHEN_FAILING_S,
    Ending,
    Line,
    Meeting,
    Offer,
    Said,
    Verdict,
    encode,
    forget_secret,
    is_proof,
    make_secret,
    opened,
    proof,
    versions,
    worst,
)
from rlhf_cli.launch.ranks import Ended, RankFailure, Ranks, failures, started
from rlhf_cli.launch.stopping import interrupted_by_signals, preempted
from rlhf_cli.launch.watchdog import note_dumps
from rlhf_cli.plan.launch_plan import LaunchPlan
from rlhf_cli.plan.network import meeting_place, towards
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_status import FAILED, PREEMPTED, update_status
from rlhf_cli.text.redaction import redacted

_LOOK_EVERY_S = 0.1
_SAME_CLOCK_S = 2.0
"""Two clocks that differ by less are taken for equal: what is said takes a moment to be heard."""


@dataclass
class Together:
    """The ranks of `plan` on this machine, and the other machines on the `line`.

    `hang_timeout_s` is launch's. `lost` are the machines that are gone: place -> when they were last heard, in seconds
    since the epoch here.
    """

    line: Line
    plan: LaunchPlan
    folder: RunFolder
    hang_timeout_s: float | str = "off"
    lost: dict[int, float] = field(default_factory=dict)
    _told: tuple[int, bool] = (0, False)
    _failures: list[RankFailure] = field(default_factory=list)

    def look(self, ranks: Ranks) -> None:
        """Tell the others how the ranks here are doing, and do what follows from how theirs are."""
        heard = [one.said for one in self.line.heard.values()]
        says = self.line.says
        if ranks.asked > says.asked:
            says = replace(says, asked=ranks.asked, asked_by=f"{ranks.asked_by} on {says.host}")
        for said in heard:
            if said.asked > says.asked:
                says = replace(says, asked=said.asked, asked_by=said.asked_by)
        if self._told != (state := (len(ranks.ended), not ranks.processes)):
            self._told, self._failures = state, self._own_failures(ranks.ended)
        ending = worst(says.ending, _ending(ranks.ended), *(said.ending for said in heard))
        self._note_lost(ending)
        ending = "failing" if self.lost else ending
        self.line.tell(
            asked=says.asked,
            asked_by=says.asked_by,
            ending=ending,
            ended=list(ranks.ended),
            failures=self._failures,
            is_done=not ranks.processes,
        )
        while ranks.asked < says.asked:
            ranks.ask(signal.SIGTERM, by=says.asked_by)
        if ending:
            ranks.leave(is_failure=ending == "failing")

    def wait(self, ranks: Ranks, is_over: Callable[[], bool]) -> None:
        """Go on looking until it is over, or all others are gone."""
        while not is_over() and len(self.lost) < len(self.line.heard):
            time.sleep(_LOOK_EVERY_S)
            self.look(ranks)

    def all_are_done(self) -> bool:
        """Return whether no rank runs any more, on any machine that is still there."""
        return all(one.said.is_done or place in self.lost for place, one in self.line.heard.items())

    def all_ended(self, ranks: Ranks) -> list[Ended]:
        """Return how the ranks of all machines ended, the first first."""
        ended = list(ranks.ended)
        for place in self.line.heard:
            shift, said = self._heard(place)
            ended += [replace(one, at=one.at + shift) for one in said.ended]
        return sorted(ended, key=attrgetter("at"))

    def first_failure(self) -> RankFailure | None:
        """Return the failure that brought all others about, on whichever machine; None where nothing failed.

        A machine that is gone is one, of its first rank, from when it was last heard: the ranks of others notice that
        its ranks are gone only after that.
        """
        found = list(self._failures)
        for place in self.line.heard:
            shift, said = self._heard(place)
            found += [replace(one, time=one.time + shift) for one in said.failures]
            if place in self.lost:
                found.append(self._gone(place, said))
        return min(found, key=attrgetter("time"), default=None)

    def _heard(self, place: int) -> tuple[float, Said]:
        """Return by how much this machine's clock is ahead of another's, 0 where that is next to nothing, and what the
        other said.
        """
        one = self.line.heard[place]
        ahead = one.clock - one.said.clock
        return (ahead if abs(ahead) > _SAME_CLOCK_S else 0.0), one.said

    def _note_lost(self, ending: Ending) -> None:
        limit = LOST_WHEN_FAILING_S if ending == "failing" else LOST_S
        for place, one in self.line.heard.items():
            is_silent = not one.said.is_done and self.line.silent_s(place) > limit
            has_fled = one.said.has_left and self.line.says.verdict is None  # nobody leaves before that
            if place not in self.lost and (is_silent or has_fled):
                self.lost[place] = one.clock

    def _own_failures(self, ended: list[Ended]) -> list[RankFailure]:
        """Return what failed here, and leave out what ranks of other machines wrote into the same folder."""
        note_dumps(self.folder, ended, self.hang_timeout_s)
        own = {one.rank for one in self.plan.ranks}
        found = [one for one in failures(self.folder, ended, log=self.plan.log) if one.rank in own]
        host = self.line.says.host
        return [
            replace(one, message=redacted(one.message), traceback=redacted(one.traceback), host=host) for one in found
        ]

    def _gone(self, place: int, said: Said) -> RankFailure:
        per_machine = len(self.plan.ranks)
        first, last = place * per_machine, (place + 1) * per_machine - 1
        which = "" if first == last else f" with ranks {first} to {last}"
        seconds = time.time() - self.lost[place]
        message = f"is gone: nothing was heard of its machine{which} for {seconds:.0f} s"
        return RankFailure(first, self.lost[place], message, host=said.host)


def _ending(ended: list[Ended]) -> Ending:
    return worst("", *("failing" if one.code not in (0, EXIT_PREEMPTED) else "leaving" for one in ended if one.code))


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
