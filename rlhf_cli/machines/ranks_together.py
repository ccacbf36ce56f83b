"""Keeps the ranks of one machine in step with those of the others: who asks for an end, who fails, who is gone."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from operator import attrgetter

from rlhf_cli.errors import EXIT_PREEMPTED
from rlhf_cli.launch.hang_report import note_dumps
from rlhf_cli.launch.rank_failures import RankFailure, failures
from rlhf_cli.launch.ranks import Ended, Ranks
from rlhf_cli.machines.machine_line import LOST_S, LOST_WHEN_FAILING_S, Line
from rlhf_cli.machines.machine_words import Ending, Said, worst
from rlhf_cli.plan.launch_plan import LaunchPlan
from rlhf_cli.redaction import redacted
from rlhf_cli.runs.run_folder import RunFolder

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
