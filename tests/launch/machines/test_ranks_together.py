"""What a machine makes of what the others say: which end is the cause, who is gone, whose clock is wrong, who asked."""

from __future__ import annotations

import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from rlhf_cli.launch.machines.first_machine import Together
from rlhf_cli.launch.machines.messages import Heard, Line, Said
from rlhf_cli.launch.ranks import Ended, RankFailure, Ranks
from rlhf_cli.plan.launch_plan import LaunchPlan, RankPlan
from rlhf_cli.runs.run_folder import RunFolder

NOW = 1_000_000.0


class Quiet(Line):
    """A line without a thread: what is heard is what a test puts there, at `silent` seconds ago."""

    def __init__(self) -> None:
        self.broken = None
        self.heard = {}
        self.silent: dict[int, float] = {}
        self._says = Said("mine", "here")

    def silent_s(self, place: int) -> float:
        return self.silent.get(place, 0.0)

    def hear(self, place: int, clock: float = NOW, at: float = NOW, **said: object) -> None:
        """The machine at a place says this at `clock`, its own time, which is `at` here."""
        whole = replace(Said(f"name {place}", f"gpu{place + 1}", clock=clock), **said)  # type: ignore[arg-type]
        self.heard[place] = Heard(whole, time.monotonic(), at)


@pytest.fixture
def line() -> Quiet:
    return Quiet()


@pytest.fixture
def together(line: Quiet, tmp_path: Path) -> Together:
    folder = RunFolder(tmp_path)
    rank = RankPlan(0, 0, None, {}, ())
    plan = LaunchPlan((rank,), 2, 2, {}, None, folder.log, "", False, meets_at="here:1")
    return Together(line, plan, folder)


def ranks(*ended: Ended) -> Ranks:
    return Ranks({}, 30.0, list(ended))


def said_by(rank: int, time: float) -> RankFailure:
    return RankFailure(rank, time, "it is unhappy", host="gpu2")


class TestTheCause:
    def test_the_earlier_of_two(self, together: Together, line: Quiet) -> None:
        line.hear(1, failures=[said_by(1, NOW - 1)], ended=[Ended(1, 1, NOW)])
        together.look(ranks(Ended(0, -9, NOW - 0.5)))
        first = together.first_failure()
        assert first is not None
        assert (first.rank, first.host) == (1, "gpu2")
        assert [one.rank for one in together.all_ended(ranks(Ended(0, -9, NOW - 0.5)))] == [0, 1]

    def test_a_clock_that_is_wrong_is_put_right(self, together: Together, line: Quiet) -> None:
        """The other's clock is a minute behind: what it dates before ours was really after it."""
        line.hear(1, clock=NOW - 60, at=NOW, failures=[said_by(1, NOW - 60)], ended=[Ended(1, 1, NOW - 60)])
        own = ranks(Ended(0, -9, NOW - 2))
        together.look(own)
        first = together.first_failure()
        assert first is not None
        assert (first.rank, first.host) == (0, "here")
        assert [one.rank for one in together.all_ended(own)] == [0, 1]

    def test_a_clock_that_is_nearly_right_is_left_alone(self, together: Together, line: Quiet) -> None:
        """What is said takes a moment to be heard, which is no difference of clocks."""
        line.hear(1, clock=NOW - 0.4, at=NOW, failures=[said_by(1, NOW - 0.6)])
        together.look(ranks(Ended(0, -9, NOW - 0.5)))
        first = together.first_failure()
        assert first is not None
        assert first.rank == 1

    @pytest.mark.parametrize(("heard_at", "cause"), [(NOW - 9, 1), (NOW - 1, 0)])
    def test_a_machine_that_was_gone_before_is(self, together: Together, line: Quiet, heard_at: float, cause: int):
        """Rank 0 failed at NOW - 5: of the loss of the other where that was last heard before, else of itself."""
        line.hear(1, clock=heard_at, at=heard_at)
        line.silent[1] = 4.0
        together.look(ranks(Ended(0, 1, NOW - 5)))
        first = together.first_failure()
        assert first is not None
        assert first.rank == cause
        assert together.lost == {1: heard_at}


class TestGone:
    @pytest.mark.parametrize(("silent_s", "code", "is_lost"), [(14, None, 0), (16, None, 1), (4, 1, 1), (2, 1, 0)])
    def test_after_so_long(self, together, line: Quiet, silent_s: float, code: int | None, is_lost: int) -> None:
        """15 s of silence; 3 s where something has failed, of which that may be the cause."""
        line.hear(1)
        line.silent[1] = silent_s
        together.look(ranks(*([Ended(0, code, NOW)] if code else [])))
        assert len(together.lost) == is_lost
        assert line.says.ending == ("failing" if code or is_lost else "")

    def test_who_has_ended_may_be_silent(self, together: Together, line: Quiet) -> None:
        line.hear(1, is_done=True)
        line.silent[1] = 60
        together.look(ranks())
        assert together.lost == {}

    def test_who_leaves_before_it_is_over_is_gone(self, together: Together, line: Quiet) -> None:
        line.hear(1, is_done=True, has_left=True)
        together.look(ranks())
        assert set(together.lost) == {1}


class TestAsking:
    def test_another_s_wish_is_handed_on_once(self, together: Together, line: Quiet, capsys) -> None:
        line.hear(1, asked=1, asked_by="SIGTERM on gpu2")
        own = ranks()
        together.look(own)
        together.look(own)
        assert (own.asked, own.asked_by) == (1, "SIGTERM on gpu2")
        assert capsys.readouterr().err.count("SIGTERM on gpu2: saving at the end of this step") == 1
        assert (line.says.asked, line.says.asked_by) == (1, "SIGTERM on gpu2")

    def test_one_s_own_is_told_with_the_host(self, together: Together, line: Quiet) -> None:
        own = ranks()
        own.ask(signal.SIGINT)
        together.look(own)
        assert (line.says.asked, line.says.asked_by) == (1, "Ctrl-C on here")

    def test_a_signal_that_reaches_all_machines_is_one_wish(self, together: Together, line: Quiet) -> None:
        """scancel tells every process of a job: what was handed on a moment ago comes by Slurm as well."""
        line.hear(1, asked=1, asked_by="SIGTERM on gpu2")
        own = ranks()
        together.look(own)
        own.ask(signal.SIGTERM)
        assert own.asked == 1
        own.ask(signal.SIGINT)  # a key is no echo
        assert own.asked == 2
