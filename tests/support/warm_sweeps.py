"""A sweep's warm server for all tests of a session: what it imports takes seconds, and it keeps nothing of a job."""

from __future__ import annotations

from rlhf_cli.sweeps.warm_processes import WarmServer

_servers: list[WarmServer] = []


class LastingServer(WarmServer):
    """A server that a sweep may close as often as it likes."""

    def close(self) -> None:
        """Leave it to the next sweep; it ends with the tests."""


def the_server(*, threads: int | None) -> WarmServer:
    """Return the one server, whichever threads are asked for: a job has its own from its environment."""
    if not _servers:
        _servers.append(LastingServer(threads=1))
    return _servers[0]
