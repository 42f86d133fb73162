"""The sockets on which the fast transport and the admin port accept connections.

The event loop's own servers are not used, for two reasons: each TLS connection needs the
certificate that is in force when it arrives, and handshakes must count as connections.
"""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import socket
import stat
from collections.abc import Callable
from contextlib import suppress

UNIX = "unix:"
"""Prefix of the address of a Unix socket."""

_BACKLOG = 1024
"""Connections that may wait to be accepted. An Envoy opens one for each of its threads."""

_PAUSE_SECONDS = 0.1
"""Pause after a connection could not be accepted, usually because no file is left."""


class CannotListen(OSError):
    """An address that cannot be bound."""

    def __init__(self, address: str, why: object) -> None:
        super().__init__(f"cannot listen on {address}: {why}")


class Listener:
    """A listener that accepts connections on HOST:PORT or unix:PATH until it is closed.

    Raises CannotListen if the address cannot be bound.
    """

    def __init__(self, address: str, accepted: Callable[[socket.socket], None]) -> None:
        self._accepted = accepted
        try:
            self.sockets = _unix(address) if address.startswith(UNIX) else _tcp(address)
        except OSError as error:
            raise CannotListen(address, error.strerror or error) from None
        self._tasks = [asyncio.create_task(self._accept(listening)) for listening in self.sockets]

    async def close(self) -> None:
        """Accept no more connections."""
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with suppress(asyncio.CancelledError):
                await task
        for listening in self.sockets:
            listening.close()

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(listening)
            except OSError:
                await asyncio.sleep(_PAUSE_SECONDS)
            else:
                self._accepted(connection)


def check_free(path: str) -> None:
    """Raise OSError if a process listens on the path: a second one would silently replace it.

    A socket file that no process listens on is free.
    """
    with socket.socket(socket.AF_UNIX) as probe:
        if os.path.exists(path) and not probe.connect_ex(path):
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))


def most_connections(limit: int, divisor: int) -> int:
    """Return the limit of a port's connections: `limit`, or its share of the open files."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return limit if files < 0 else min(limit, files // divisor)


def _tcp(address: str) -> list[socket.socket]:
    """Return a listening socket for each address of the host."""
    host, _, port = address.rpartition(":")
    found = socket.getaddrinfo(
        host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    sockets: list[socket.socket] = []
    try:
        for family, bound_to in dict.fromkeys((one[0], one[4]) for one in found):
            listening = socket.socket(family, socket.SOCK_STREAM)
            sockets.append(listening)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            _listen(listening, bound_to)
    except OSError:
        for listening in sockets:
            listening.close()
        raise
    return sockets


def _unix(address: str) -> list[socket.socket]:
    path = address.removeprefix(UNIX)
    check_free(path)
    if os.path.exists(path) and stat.S_ISSOCK(os.stat(path).st_mode):
        os.remove(path)
    listening = socket.socket(socket.AF_UNIX)
    try:
        _listen(listening, path)
    except OSError:
        listening.close()
        raise
    return [listening]


def _listen(listening: socket.socket, bound_to: object) -> None:
    listening.setblocking(False)
    listening.bind(bound_to)  # type: ignore[arg-type]
    listening.listen(_BACKLOG)
