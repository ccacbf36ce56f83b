"""Find the address where machines meet and the interface that reaches it.

gloo, which connects ranks on CPUs, would otherwise take the interface that the host's own name resolves to. On Debian
that is 127.0.1.1, which other machines cannot reach. NCCL chooses an interface itself.
"""

from __future__ import annotations

import contextlib
import os
import socket
from dataclasses import dataclass
from ipaddress import ip_address

_WAITING_CONNECTIONS = 512
_CONNECT_TIMEOUT_S = 2.0
_HIGHEST_PORT = 65535
_OUTSIDE = "192.0.2.1"
"""An unassigned address (RFC 5737), reached over the default route."""


@dataclass(frozen=True)
class MeetingPlace:
    """A host (name or address) and a port, written `HOST:PORT`."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    def listen(self) -> socket.socket:
        """Return a socket that listens at this address only.

        Raise OSError if the host is unknown or is another machine, or if the port is taken.
        """
        family, address = self._addresses()[0]
        one = socket.socket(family, socket.SOCK_STREAM)
        try:
            # Sockets that a run which just ended left in TIME_WAIT do not block the port.
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind(address)
            one.listen(_WAITING_CONNECTIONS)
        except OSError:
            one.close()
            raise
        return one

    def is_own_alone(self) -> bool:
        """Return whether the host is a name that only this machine resolves to itself: on Debian, a host's own name is
        127.0.1.1. False for `localhost` or a typed loopback address, which are deliberate.
        """
        try:
            address = ip_address(str(self._addresses()[0][1][0]))
        except OSError:
            return False
        return address.is_loopback and self.host not in ("localhost", str(address))

    def is_known(self) -> bool:
        """Return whether the host is an address, or a name that this machine can resolve."""
        try:
            return bool(self._addresses())
        except OSError:
            return False

    def _addresses(self) -> list[tuple[socket.AddressFamily, tuple[str | int | bytes, ...]]]:
        found = [(entry[0], entry[4]) for entry in socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)]
        return sorted(found, key=lambda entry: entry[0] != socket.AF_INET)


def own_host() -> str:
    """Return the name or address by which others reach this machine: its name, or the source address of packets to the
    outside if others cannot resolve that name.
    """
    name = socket.gethostname()
    place = MeetingPlace(name, 1)
    return name if place.is_known() and not place.is_own_alone() else own_address(_OUTSIDE) or name


def own_address(towards: str) -> str | None:
    """Return this machine's source address for packets to a host, or None without a route. Sends no packet."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.connect((towards, 9))
        return str(one.getsockname()[0])
    return None


def meeting_place(text: str) -> MeetingPlace | None:
    """Parse `HOST:PORT`; return None if `text` has another form."""
    host, colon, port = text.rpartition(":")
    if not (host and colon and port.isdecimal() and 0 < int(port) <= _HIGHEST_PORT):
        return None
    return MeetingPlace(host, int(port))


def why_not_reached(host: str, port: int) -> str | None:
    """Return why the port does not accept a connection within two seconds, or None if it does."""
    try:
        with socket.create_connection((host, port), timeout=_CONNECT_TIMEOUT_S):
            return None
    except OSError as error:
        return error.strerror or str(error) or type(error).__name__


GLOO = "GLOO_SOCKET_IFNAME"
"""The variable that names the only interface gloo listens on."""


def towards(host: str) -> dict[str, str]:
    """Return the variable that names the interface towards `host`; empty if it is set already or no interface fits."""
    if GLOO in os.environ:
        return {}
    name = interface_of(own_address(host))
    return {GLOO: name} if name is not None else {}


def interface_of(address: str | None) -> str | None:
    """Return the interface that has this IPv4 address, or None if there is none."""
    import psutil

    held = psutil.net_if_addrs().items()
    return next((name for name, addresses in held if any(one.address == address for one in addresses)), None)
