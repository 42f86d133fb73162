"""Carries the ext_proc service over our own gRPC, with gRPC health beside it.

grpc.aio takes some 300 us of CPU for each request, whatever is done in it. What Envoy needs of
gRPC is little: one method of streams, in plain text, over connections that stay; so bytes
go from the socket through `extproc.edge.http2` and `extproc.edge.grpc_connection` to the
session and back within one call of the event loop, without a task for each stream.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from time import monotonic
from typing import cast

from extproc.edge.grpc_connection import GrpcConnection, Method
from extproc.edge.health import SERVICE, Health
from extproc.edge.server import UNIX, check_free
from extproc.edge.service import ExternalProcessor

_BACKLOG = 1024
"""Connections that may wait to be accepted: an Envoy has one for each of its threads."""

_UNSENT = 1 << 20
"""Bytes that may wait for a peer that does not read; until it does, it is not read either."""

_SILENCE_SECONDS = 60
"""After which the kernel asks whether a peer is still there: its requests would count for ever."""


class FastServer:
    """Listens once started; drains on stop."""

    def __init__(self, processor: ExternalProcessor) -> None:
        self._health = Health()
        process = Method(lambda _: processor.open())
        self._methods = {f"/{SERVICE}/Process".encode(): process, **self._health.methods()}
        self._peers: set[_Peer] = set()
        self._server: asyncio.Server | None = None
        self._nobody = asyncio.Event()

    async def start(self, address: str) -> None:
        """Binds HOST:PORT or unix:PATH and serves. Raises OSError where that fails."""
        loop = asyncio.get_running_loop()
        try:
            if address.startswith(UNIX):
                path = address.removeprefix(UNIX)
                check_free(path)
                server = await loop.create_unix_server(self._peer, path, backlog=_BACKLOG)
            else:
                host, _, port = address.rpartition(":")
                server = await loop.create_server(
                    self._peer, host.strip("[]"), int(port), backlog=_BACKLOG
                )
        except OSError:
            raise OSError(f"cannot listen on {address}: in use, or not to be bound") from None
        self._server = server

    async def set_serving(self, serving: bool) -> None:
        """What gRPC health says, for the server as a whole and for the service; we live anyway."""
        self._health.set_serving(serving)

    async def stop(self, grace: float) -> None:
        """Takes no new streams; those that run have `grace` seconds to end."""
        if self._server is not None:
            self._server.close()
        for peer in list(self._peers):
            peer.drain()
        if self._peers:
            self._nobody.clear()
            try:
                async with asyncio.timeout(grace):
                    await self._nobody.wait()
            except TimeoutError:
                for peer in list(self._peers):
                    peer.abort()

    def _peer(self) -> _Peer:
        return _Peer(self._methods, self._peers, self._nobody)


class _Peer(asyncio.Protocol):
    """Between a socket and what is said over it."""

    _transport: asyncio.Transport

    def __init__(
        self, methods: Mapping[bytes, Method], peers: set[_Peer], nobody: asyncio.Event
    ) -> None:
        self._grpc = GrpcConnection(methods, self._flush)
        self._peers = peers
        self._nobody = nobody

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, since uvloop's are not derived from it.
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(_UNSENT)
        _ask_after_silence(transport.get_extra_info("socket"))
        self._peers.add(self)

    def data_received(self, data: bytes) -> None:
        self._grpc.receive(data, monotonic())
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self._grpc.lost()
        self._peers.discard(self)
        if not self._peers:
            self._nobody.set()

    def pause_writing(self) -> None:
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._transport.resume_reading()

    def drain(self) -> None:
        """No new streams."""
        self._grpc.drain()
        self._flush()

    def abort(self) -> None:
        """Ends all at once."""
        self._transport.abort()

    def _flush(self) -> None:
        if data := self._grpc.take():
            self._transport.write(data)
        if self._grpc.over:
            self._transport.close()


def _ask_after_silence(connection: socket.socket) -> None:
    if connection.family != socket.AF_UNIX:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(socket, "TCP_KEEPIDLE"):  # not on macOS
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _SILENCE_SECONDS)
