"""What a machine makes of what the others say: which end is the cause, who is gone, who asked."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from rlhf_cli.launch.machines import Link, Machines, MachineState
from rlhf_cli.launch.ranks_end import RankFailure, RanksEnd
from rlhf_cli.plan.launch_plan import LaunchPlan, RankPlan
from rlhf_cli.runs.run_folder import RunFolder


class QuietLink(Link):
    """A link without a thread: the states of the others are what a test puts there."""

    def __init__(self) -> None:
        self.problem = None
        self.state = MachineState("mine", "here")
        self.states, self.heard_at, self.silent = {}, {}, dict[int, float]()

    def silent_s(self, node: int) -> float:
        return self.silent.get(node, 0.0)

    def hear(self, node: int, silent_s: float = 0.0, **state: object) -> None:
        """The machine said this `silent_s` seconds ago, and nothing since."""
        self.states[node] = replace(MachineState(f"name {node}", f"gpu{node + 1}"), **state)  # type: ignore[arg-type]
        self.heard_at[node], self.silent[node] = time.monotonic() - silent_s, silent_s


@pytest.fixture
def link() -> QuietLink:
    return QuietLink()


@pytest.fixture
def machines(link: QuietLink, tmp_path: Path) -> Machines:
    folder = RunFolder(tmp_path)
    plan = LaunchPlan((RankPlan(0, None, {}, ()),), 2, 2, {}, None, folder.log, "", False, meets_at="here:1")
    return Machines(link, plan, folder)


def failure(rank: int, ago_s: float) -> RankFailure:
    return RankFailure(rank, time.time() - ago_s, "it is unhappy", host=f"gpu{rank + 1}")


def first_of(end: RanksEnd) -> RankFailure:
    return min(end.failures, key=lambda one: one.time)


def test_the_earlier_of_two_failures_is_the_cause(machines: Machines, link: QuietLink) -> None:
    link.hear(1, end=RanksEnd([failure(1, 1.0)]))
    assert first_of(machines.all_ended(RanksEnd([failure(0, 0.5)]))).rank == 1
    assert first_of(machines.all_ended(RanksEnd([failure(0, 2.0)]))).rank == 0


@pytest.mark.parametrize(("silent_s", "cause"), [(9.0, 1), (6.0, 1), (5.5, 0)])
def test_a_machine_that_was_gone_before_is_the_cause(machines, link: QuietLink, silent_s: float, cause: int) -> None:
    """Rank 0 failed 5.8 s ago: because of the other machine, if that one was last heard before."""
    link.tell(is_ending=True)
    link.hear(1, silent_s)
    first = first_of(machines.all_ended(RanksEnd([failure(0, 5.8)])))
    assert first.rank == cause
    if cause:
        assert first.message == f"is gone: nothing was heard of its machine for {silent_s:.0f} s"


@pytest.mark.parametrize(
    ("silent_s", "is_ending", "is_lost"), [(14, False, 0), (16, False, 1), (6, True, 1), (2, True, 0)]
)
def test_gone_after_15_s_of_silence_or_5_once_something_failed(
    machines: Machines, link: QuietLink, silent_s: float, is_ending: bool, is_lost: int
) -> None:
    link.tell(is_ending=is_ending)
    link.hear(1, silent_s)
    machines.find_lost()
    assert len(machines.lost) == is_lost
