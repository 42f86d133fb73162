"""The server of `--transport fast`: the ext_proc service and gRPC health over our own gRPC.

grpc.aio takes about 300 us of CPU time for each request, even for an empty one. Envoy needs only a
small part of gRPC: one streaming method over long-lived connections. So bytes go from the socket
through `extproc.edge.http2` and `extproc.edge.grpc.connection` to the session and back in one
call of the event loop, without a task for each stream.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping

from extproc.edge.ext_proc.service import ExternalProcessor, Session
from extproc.edge.grpc.calls import Method, Send
from extproc.edge.grpc.health import SERVICE, Health
from extproc.edge.grpc.messages import CallError, Status
from extproc.edge.grpc.socket_connection import READ_BYTES, SocketConnection
from extproc.edge.http2 import Headers
from extproc.edge.listening import Listener, most_connections
from extproc.edge.tls import Certificates, KeyPair

MOST_CONNECTIONS = 2_048
"""Open connections at most. An Envoy opens one for each of its threads."""

_FILES_DIVISOR = 2
"""Connections take half of the open files at most: endpoints and the admin port need some."""


class FastServer:
    """A server of the ext_proc service, with TLS if there is a key pair."""

    def __init__(self, processor: ExternalProcessor, key_pair: KeyPair | None = None) -> None:
        self._processor = processor
        self._key_pair = key_pair
        self._health = Health()
        self.methods: Mapping[bytes, Method] = {
            f"/{SERVICE}/Process".encode(): Method(self._open),
            **self._health.methods(),
        }
        self.buffer = memoryview(bytearray(READ_BYTES))
        self._certificates: Certificates | None = None
        self._connections: dict[SocketConnection, None] = {}
        self._listener: Listener | None = None
        self._serving = False
        self._no_connections = asyncio.Event()

    async def start(self, address: str) -> None:
        """Bind HOST:PORT or unix:PATH. Raises OSError if that fails or the key pair is bad.

        Until `set_serving(True)`, each stream of the service ends at once with UNAVAILABLE.
        """
        if self._key_pair is not None:
            self._certificates = Certificates(self._key_pair)
        self._listener = Listener(address, self._accepted)

    async def set_serving(self, serving: bool) -> None:
        """Accept or refuse new streams of the service, and report that by gRPC health."""
        self._serving = serving
        self._health.set_serving(serving)

    async def stop(self, grace: float) -> None:
        """Accept no new streams. Open ones have `grace` seconds to end."""
        if self._listener is not None:
            await self._listener.close()
            self._listener = None
        for connection in list(self._connections):
            connection.drain()
        if self._connections:
            self._no_connections.clear()
            try:
                async with asyncio.timeout(grace):
                    await self._no_connections.wait()
            except TimeoutError:
                for connection in list(self._connections):
                    connection.abort()

    def forget(self, connection: SocketConnection) -> None:
        """Remove a connection that is over."""
        self._connections.pop(connection, None)
        if not self._connections:
            self._no_connections.set()

    def _accepted(self, accepted: socket.socket) -> None:
        if len(self._connections) >= _most_connections() and not self._make_room():
            accepted.close()
            return
        connection = SocketConnection(self)
        self._connections[connection] = None
        tls = None if self._certificates is None else self._certificates.context()
        connection.open(accepted, tls)

    def _make_room(self) -> bool:
        """Abort the connection that was idle for the longest time. Return False if all have calls.

        Connections without a preface go first.
        """
        idle = [connection for connection in self._connections if connection.idle]
        if not idle:
            return False
        min(idle, key=lambda one: (one.greeted, one.last_received_at)).abort()
        return True

    def _open(self, send: Send, headers: Headers) -> Session:
        if not self._serving:
            # Envoy uses its fallback at once, as if no process were listening.
            raise CallError(Status.UNAVAILABLE, "not ready, or draining")
        return self._processor.open(send, headers)


def _most_connections() -> int:
    return most_connections(MOST_CONNECTIONS, _FILES_DIVISOR)
