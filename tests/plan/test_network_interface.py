"""The interface by which gloo reaches the other machines."""

from __future__ import annotations

import subprocess

import pytest

from rlhf_cli.plan.network import interface_of, towards


def test_loopback() -> None:
    assert interface_of("127.0.0.1") == "lo"
    assert towards("127.0.0.1") == {"GLOO_SOCKET_IFNAME": "lo"}


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


def test_what_somebody_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0")
    assert towards("127.0.0.1") == {}


@pytest.mark.parametrize("address", [None, "192.0.2.7"])
def test_an_address_of_nobody(address: str | None) -> None:
    assert interface_of(address) is None
    assert towards("nobody.invalid") == {}
