"""Knows the address at which the machines of a run meet: the first machine's own, with a port that it listens at."""

from __future__ import annotations

import socket
from dataclasses import dataclass

_WAITING_CONNECTIONS = 512
_HIGHEST_PORT = 65535


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

    def is_known(self) -> bool:
        """Return whether the host is an address, or a name that this machine has an address for."""
        try:
            return bool(self._addresses())
        except OSError:
            return False

    def _addresses(self) -> list[tuple[socket.AddressFamily, tuple[str | int | bytes, ...]]]:
        found = [(entry[0], entry[4]) for entry in socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)]
        return sorted(found, key=lambda entry: entry[0] != socket.AF_INET)


def meeting_place(text: str) -> MeetingPlace | None:
    """Return what `HOST:PORT` stands for, None where it is no such thing."""
    host, colon, port = text.rpartition(":")
    if not (host and colon and port.isdecimal() and 0 < int(port) <= _HIGHEST_PORT):
        return None
    return MeetingPlace(host, int(port))
