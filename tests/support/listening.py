"""Where the processes of a command wait for connections."""

from __future__ import annotations

import contextlib

import psutil


def listening(pid: int) -> set[str]:
    """The addresses at which a process, and all that it has started, wait for connections."""
    addresses = set[str]()
    with contextlib.suppress(psutil.NoSuchProcess):
        command = psutil.Process(pid)
        for process in (command, *command.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                sockets = process.net_connections(kind="tcp")
                addresses |= {one.laddr.ip for one in sockets if one.status == psutil.CONN_LISTEN}
    return addresses
