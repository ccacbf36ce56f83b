"""Two machines of a run as two commands over loopback, whose ranks only pretend: who ends whom, and who is named."""

from __future__ import annotations

import json
import os
import signal

import pytest

from rlhf_cli.runs.run_status import read_status
from tests.launch.machines.two_machines import TwoMachines
from tests.launch.test_elastic import is_gone


def pids(machines: TwoMachines) -> list[int]:
    return [json.loads(machines.here(rank).read_text())["pid"] for rank in (0, 1)]


def test_two_that_end_well(machines: TwoMachines) -> None:
    first, second = machines.both()
    host, port = machines.address.split(":")
    for rank in (0, 1):
        here = json.loads(machines.here(rank).read_text())
        del here["pid"]
        assert here == {
            **{"RANK": str(rank), "LOCAL_RANK": "0", "GROUP_RANK": str(rank), "WORLD_SIZE": "2", "resume": True},
            **{"MASTER_ADDR": host, "MASTER_PORT": port, "TORCHELASTIC_USE_AGENT_STORE": "True", "interface": "lo"},
        }
        machines.tell(rank, "end")
    assert (first.wait(), second.wait()) == (0, 0), (first.said, second.said)
    assert read_status(machines.folder).state == "finished"
    assert "machine 2 of 2: rank 1 of 2" in second.said
    assert "the run has finished" in second.said
    assert not (machines.folder.path / ".meeting.json").exists()


def test_the_rank_that_fails_is_named_with_its_machine_and_ends_the_other(machines: TwoMachines) -> None:
    first, second = machines.both()
    machines.tell(1, "fail")
    assert (first.wait(), second.wait()) == (1, 1)
    host = os.uname().nodename
    for command in (first, second):
        assert f"error: rank 1 on {host} failed: it is unhappy" in command.said
    assert "traceback of 1" in first.said
    assert all(map(is_gone, pids(machines)))
    status = read_status(machines.folder)
    assert (status.state, status.failing_rank, status.reason) == (
        *("failed", 1),
        f"rank 1 on {host} failed: it is unhappy",
    )


def test_a_machine_that_is_killed_ends_the_other_and_is_named(machines: TwoMachines) -> None:
    """The rank that is left notices nothing, as one that waits in NCCL."""
    first, second = machines.both(LOST_S=2.0)
    second.process.kill()
    assert first.wait() == 1
    assert f"error: rank 1 on {os.uname().nodename} is gone: nothing was heard of its machine for" in first.said
    assert all(map(is_gone, pids(machines)))
    assert read_status(machines.folder).failing_rank == 1


@pytest.mark.parametrize("which", [0, 1])
def test_a_signal_on_either_stops_both(machines: TwoMachines, which: int) -> None:
    commands = machines.both()
    os.kill(commands[which].process.pid or 0, signal.SIGTERM)
    assert [command.wait() for command in commands] == [75, 75]
    assert [file.name for file in machines.folder.path.glob("heard-rank*")] == [f"heard-rank{which}"]
    status = read_status(machines.folder)
    assert (status.state, status.reason) == ("preempted", f"SIGTERM on {os.uname().nodename}")
    assert "SIGTERM: saving at the end of this step; once more ends it at once" in commands[which].said
    assert "stopped: nothing is saved yet; `rlhf resume" in commands[1 - which].said
