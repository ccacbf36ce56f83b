"""The address where the machines of a run meet, and the interface by which gloo reaches it."""

from __future__ import annotations

import socket
import subprocess

import pytest

from rlhf_cli.plan.network import MeetingPlace, interface_of, meeting_place
from tests.support.planning import Refused, planned

QUICK = ("exp=quickstart", "launch=cpu", "trainer.args.per_device_train_batch_size=32")


@pytest.mark.parametrize("text", ["", "host", "host:", ":1", "host:0", "host:65536", "host:x"])
def test_what_is_no_place(text: str) -> None:
    assert meeting_place(text) is None


def test_nobody_else_is_listened_to() -> None:
    """At the address that was named and no other: 127.0.0.2 is this machine as well."""
    with MeetingPlace("127.0.0.1", 0).listen() as listening:
        port = listening.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            pass
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", port), timeout=5)


class TestRefused:
    def test_nowhere_to_meet(self, refused: Refused) -> None:
        error = refused(*QUICK, "launch.nodes=2")
        assert error.what == "2 machines have no address to meet at: this machine's, with a free port; or use Slurm"
        assert str(error.where).startswith("launch.nodes (")
        assert ":29500" in str(error.hint)

    def test_a_port_in_use(self, refused: Refused) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            place = MeetingPlace("127.0.0.1", taken.getsockname()[1])
            error = refused(*QUICK, "launch.nodes=2", f"launch.rdzv={place}")
        assert error.what == "the machines cannot meet at launch.rdzv"
        assert error.got == f"{place}: Address already in use"
        assert planned(*QUICK, "launch.nodes=2", f"launch.rdzv={place}").processes == 2

    def test_a_name_that_only_leads_to_itself(self, refused: Refused, monkeypatch) -> None:
        resolve = socket.getaddrinfo
        monkeypatch.setattr(
            socket, "getaddrinfo", lambda host, *a, **n: resolve("127.0.1.1" if host == "gpu1" else host, *a, **n)
        )
        monkeypatch.setattr(socket, "gethostbyname", lambda host: "127.0.1.1")
        error = refused(*QUICK, "launch.nodes=2", "launch.rdzv=gpu1:29500")
        assert error.got == "gpu1:29500: that is 127.0.1.1, which leads every machine to itself"


def test_as_the_system_s_own_tool_says() -> None:
    """Every address of `ip -4 -oneline address`, the first of its interface."""
    try:
        listed = subprocess.run(["ip", "-4", "-oneline", "address"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("there is no `ip` here")
    first: dict[str, str] = {}
    for line in listed.splitlines():
        _, name, _, address, *_ = line.split()
        first.setdefault(name, address.partition("/")[0])
    assert first
    assert {interface_of(address) for address in first.values()} == set(first)
