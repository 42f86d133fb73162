"""Carries the ext_proc service over our own gRPC, with gRPC health beside it.

grpc.aio takes some 300 us of CPU for each request, whatever is done in it. What Envoy needs of
gRPC is little: one method of streams over connections that stay; so bytes go from the socket
through `extproc.edge.http2` and `extproc.edge.grpc.connection` to the session and back within one
call of the event loop, without a task for each stream.
"""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import Mapping

from extproc.edge.ext_proc.service import ExternalProcessor, Session
from extproc.edge.grpc.calls import Method, Send
from extproc.edge.grpc.health import SERVICE, Health
from extproc.edge.grpc.listening import Listener
from extproc.edge.grpc.messages import CallError, Status
from extproc.edge.grpc.socket_connection import READ_BYTES, SocketConnection
from extproc.edge.tls import Certificates, KeyPair

MOST_CONNECTIONS = 2_048
"""Connections at once: an Envoy has one for each of its threads."""


class FastServer:
    """Listens once started, with TLS if there is a key pair; drains on stop."""

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
        """Binds HOST:PORT or unix:PATH. Raises OSError where that fails, or the key pair is bad.

        Until `set_serving(True)`, a stream of the service ends at once with UNAVAILABLE.
        """
        if self._key_pair is not None:
            self._certificates = Certificates(self._key_pair)
        self._listener = Listener(address, self._accepted)

    async def set_serving(self, serving: bool) -> None:
        """What gRPC health says, for the server as a whole and for the service; we live anyway."""
        self._serving = serving
        self._health.set_serving(serving)

    async def stop(self, grace: float) -> None:
        """Takes no new streams; those that run have `grace` seconds to end."""
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
        """The connection is over."""
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
        """Ends the connection that was idle for the longest time; those that never spoke first.

        Returns False if all connections have calls.
        """
        idle = [connection for connection in self._connections if connection.idle]
        if not idle:
            return False
        min(idle, key=lambda one: (one.greeted, one.last_received_at)).abort()
        return True

    def _open(self, _: Send) -> Session:
        if not self._serving:
            # Envoy takes its fallback at once, as if there were no listener.
            raise CallError(Status.UNAVAILABLE, "not ready, or draining")
        return self._processor.open()


def _most_connections() -> int:
    """Half of the files that the process may open: the rest is for endpoints and the admin port."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_CONNECTIONS if files < 0 else min(MOST_CONNECTIONS, files // 2)
