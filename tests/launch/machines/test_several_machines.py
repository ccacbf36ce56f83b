"""Two machines of a run as two commands over loopback, whose ranks only pretend: who ends whom, and who is named."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import asdict
from pathlib import Path

import pytest

from rlhf_cli.launch import joining
from rlhf_cli.launch.joining import find_run_to_join, read_offer
from rlhf_cli.launch.machines import Offer
from rlhf_cli.runs.provenance import versions
from rlhf_cli.runs.run_status import read_status
from tests.launch.machines.two_machines import TwoMachines, until
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


# Who may be one of the machines of a run, who is sent away and with which words, and what is waited for how long.


TOKEN = ".meeting.json"


def test_another_folder_of_that_name_is_not_the_run_s(machines: TwoMachines) -> None:
    """As on a machine that has a disk of its own where the first has a shared one."""
    first = machines.first()
    (machines.folder.path / TOKEN).write_text(json.dumps({"token": "0" * 64}))
    second = machines.join(_SHARED_FOLDER_S=0.5)
    assert second.wait() == 2
    assert "error: this machine does not see the folder of the run" in second.said
    assert f"where:    {machines.folder.path}" in second.said
    assert f"another folder of that name than {os.uname().nodename} has" in second.said
    (machines.folder.path / TOKEN).unlink()
    third = machines.join(_SHARED_FOLDER_S=0.5)
    assert third.wait() == 2
    assert first.process.is_alive()


def test_nobody_comes_in_time(machines: TwoMachines) -> None:
    first = machines.type("resume", str(machines.folder.path), JOIN_TIMEOUT_S=0.6)
    assert first.wait() == 2
    assert "error: 1 of 2 machines did not come within 1 s" in first.said
    assert f"`rlhf join {machines.address}` on each of the others" in first.said
    assert "rlhf resume runs/quickstart/two" in first.said
    status = read_status(machines.folder)
    assert (status.state, status.reason) == ("failed", "1 of 2 machines did not come within 1 s")
    assert not (machines.folder.path / TOKEN).exists()


def test_who_leaves_before_it_begins_makes_room_and_who_is_too_many_is_sent_away(machines: TwoMachines) -> None:
    """Of three machines the second is ended; two others come, and one more is told that it is one too many."""
    three = machines.folder.config.read_text().replace("nodes: 2", "nodes: 3")
    machines.folder.config.write_text(three)
    first = machines.type("resume", str(machines.folder.path), "--allow", "config")
    until(lambda: "rlhf join" in first.said, first)
    leaves = machines.join()
    until(lambda: "machine 2 of 3: " in first.said, first)
    os.kill(leaves.process.pid or 0, signal.SIGTERM)
    assert leaves.wait() == 75
    until(lambda: "has gone again" in first.said, first)
    others = [machines.join(), machines.join()]
    for rank in (0, 1, 2):
        until(lambda rank=rank: machines.here(rank).exists(), first)
    too_many = machines.join()
    assert too_many.wait() == 2
    assert "error: all 3 machines of this run are there already" in too_many.said
    for rank in (0, 1, 2):
        machines.tell(rank, "end")
    assert [one.wait() for one in (first, *others)] == [0, 0, 0], first.said


def test_code_of_somebody_else_is_not_run(place: Path, machines: TwoMachines, monkeypatch) -> None:
    """A machine that does not share the user's cache cannot know who made the run."""
    (place / "mine.py").write_text("def score(completions, **kwargs):\n    return [0.0] * len(completions)\n")
    config = machines.folder.config.read_text()
    machines.folder.config.write_text(
        config.replace("fn: rlhf_cli.rewards.toy:digits_only", f"fn: {place}/mine.py:score")
    )
    first = machines.type("resume", str(machines.folder.path), "--trust", "--allow", "config", "--allow", "code")
    until(lambda: "rlhf join" in first.said, first)
    monkeypatch.setenv("RLHF_CACHE", str(place / "another"))
    second = machines.join()
    assert second.wait() == 2
    assert f"{place}/mine.py:score" in second.said
    assert f"rlhf join {machines.address} --trust" in second.said
    machines.join("--trust")
    until(lambda: machines.here(1).exists(), first)


@pytest.mark.parametrize(("package", "code"), [("torch", 2), ("python", 0)])
def test_other_versions(machines: TwoMachines, package: str, code: int, monkeypatch, capsys) -> None:
    """What trains has to be the same; a Python of another patch level is told."""
    from rich.console import Console

    from rlhf_cli.errors import RunError
    from rlhf_cli.plan.network import meeting_place

    machines.first()
    place = meeting_place(machines.address)
    monkeypatch.setattr(joining, "versions", lambda: {**versions(), package: "0.1"})
    if code:
        with pytest.raises(RunError, match="the machines have other versions of what trains") as caught:
            find_run_to_join(place, Console())
        assert caught.value.got == f"{package}: 0.1 here, {versions()[package]} on {os.uname().nodename}"
    else:
        assert find_run_to_join(place, Console()).folder == machines.folder
        assert "warning: python: 0.1 here" in capsys.readouterr().out


def test_what_is_said_is_data() -> None:
    """What is no offer is refused, whatever else it is."""
    offer = Offer("/run", "mark", "host", 2, 1, False, True, {"torch": "2"})
    text = json.dumps(asdict(offer))
    assert read_offer(text.encode()) == offer
    for other in (b"", b"[]", b'{"run": "/run"}', text.replace("2", '"two"').encode(), b"\x80\x04."):
        with pytest.raises(ValueError, match="validation error"):
            read_offer(other)
