"""Finds the network interface by which this machine reaches another.

gloo, which connects ranks on CPUs, would otherwise take the interface that the host's own name resolves to. On Debian
that is 127.0.1.1, which other machines cannot reach. NCCL chooses an interface itself.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import sys

from rlhf_cli.plan.meeting_place import own_address

GLOO = "GLOO_SOCKET_IFNAME"
"""The variable that names the only interface gloo listens on."""
_SIOCGIFADDR = 0x8915
"""Linux's request for an interface's IPv4 address, netdevice(7)."""
_REQUEST_BYTES, _NAME_BYTES = 40, 15
_ADDRESS = slice(20, 24)


def towards(host: str) -> dict[str, str]:
    """Return the variable that names the interface towards `host`; empty if it is set already or no interface fits."""
    if GLOO in os.environ:
        return {}
    name = interface_of(own_address(host))
    return {GLOO: name} if name is not None else {}


def interface_of(address: str | None) -> str | None:
    """Return the interface that has this IPv4 address, or None if there is none or this is not Linux."""
    if address is None or sys.platform != "linux":
        return None
    import fcntl

    wanted = socket.inet_aton(address)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # an interface without an address
                request = struct.pack(f"{_REQUEST_BYTES}s", name.encode()[:_NAME_BYTES])
                if fcntl.ioctl(one.fileno(), _SIOCGIFADDR, request)[_ADDRESS] == wanted:
                    return name
    return None
