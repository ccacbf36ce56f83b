"""Knows the address at which the machines of a run meet: the first machine's own, with a port that it listens at."""

from __future__ import annotations

import contextlib
import socket
from dataclasses import dataclass
from ipaddress import ip_address

_WAITING_CONNECTIONS = 512
_HIGHEST_PORT = 65535
_OUTSIDE = "192.0.2.1"
"""An address that nobody has (RFC 5737), which the way to the outside leads to."""


@dataclass(frozen=True)
class MeetingPlace:
    """A host, by name or number, and a port; `HOST:PORT` where it is written down."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    def listen(self) -> socket.socket:
        """Return a socket that listens there, and at no other address of this machine.

        Raises OSError where the host is no name that is known, is another machine, or somebody listens there already.
        """
        family, address = self._addresses()[0]
        one = socket.socket(family, socket.SOCK_STREAM)
        try:
            # What a run that ended a moment ago leaves behind is in nobody's way.
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind(address)
            one.listen(_WAITING_CONNECTIONS)
        except OSError:
            one.close()
            raise
        return one

    def is_own_alone(self) -> bool:
        """Return whether the host is a name that leads this machine to itself, and nobody else here: on Debian a host's
        own name is 127.0.1.1 to itself. Whoever types `localhost` or such a number means it.
        """
        try:
            address = ip_address(str(self._addresses()[0][1][0]))
        except OSError:
            return False
        return address.is_loopback and self.host not in ("localhost", str(address))

    def is_known(self) -> bool:
        """Return whether the host is an address, or a name that this machine has an address for."""
        try:
            return bool(self._addresses())
        except OSError:
            return False

    def _addresses(self) -> list[tuple[socket.AddressFamily, tuple[str | int | bytes, ...]]]:
        found = [(entry[0], entry[4]) for entry in socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)]
        return sorted(found, key=lambda entry: entry[0] != socket.AF_INET)


def own_host() -> str:
    """Return by which name or address others reach this machine: its name, or where it is nothing to others the address
    that packets to the outside would bear.
    """
    name = socket.gethostname()
    place = MeetingPlace(name, 1)
    return name if place.is_known() and not place.is_own_alone() else own_address(_OUTSIDE) or name


def own_address(towards: str) -> str | None:
    """Return this machine's address in what it would send to a host, None where there is no way; nothing is sent."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.connect((towards, 9))
        return str(one.getsockname()[0])
    return None


def meeting_place(text: str) -> MeetingPlace | None:
    """Return what `HOST:PORT` stands for, None where it is no such thing."""
    host, colon, port = text.rpartition(":")
    if not (host and colon and port.isdecimal() and 0 < int(port) <= _HIGHEST_PORT):
        return None
    return MeetingPlace(host, int(port))
