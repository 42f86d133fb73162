"""Connects a socket to a `GrpcConnection`."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Mapping
from time import monotonic, thread_time
from typing import Protocol, cast

from extproc.adapters.observability.logs import fields
from extproc.edge.grpc.calls import Method
from extproc.edge.grpc.connection import GrpcConnection

log = logging.getLogger("extproc.grpc")

READ_BYTES = 262_144
"""Bytes that are read from one connection before others get their turn."""

TURN_BYTES = 65_536
"""Bytes after which the time of a turn is checked. After slow bytes it is checked earlier."""

TURN_SECONDS = 0.005
"""CPU time of one connection before others get their turn. A request takes about 50 us."""

_FEWEST_TURN_BYTES = 8_192

GREETING_SECONDS = 10.0
"""Time limit for the TLS handshake, the preface and the first SETTINGS."""

_UNSENT = 1 << 20
"""Unsent bytes above which we stop reading from a peer until it reads."""

_SILENCE_SECONDS = 60
"""Silence after which the kernel checks the peer. A vanished peer would keep its leases."""


class Owner(Protocol):
    """The server that owns a connection."""

    methods: Mapping[bytes, Method]
    buffer: memoryview
    """A buffer that one connection at a time fills and empties, in one call of the event loop."""

    def forget(self, connection: SocketConnection) -> None:
        """Remove a connection that is over."""


class SocketConnection(asyncio.BufferedProtocol):
    """An accepted connection, until it is closed."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._grpc = GrpcConnection(owner.methods, self._flush)
        self._transport: asyncio.Transport | None = None
        self._opening: asyncio.Task[None] | None = None
        loop = asyncio.get_running_loop()
        self._greeting: asyncio.TimerHandle | None = loop.call_later(GREETING_SECONDS, self.abort)
        self._may_read = True
        self._step = _FEWEST_TURN_BYTES
        self._unread = b""
        """Bytes that were read but not handled in the last turn."""
        self._over = False
        self.last_received_at = monotonic()
        """Time of the last received bytes, monotonic."""

    @property
    def greeted(self) -> bool:
        """True once the peer has sent its HTTP/2 preface and SETTINGS."""
        return self._grpc.greeted

    @property
    def idle(self) -> bool:
        """True if no call is open."""
        return not self._grpc.calls

    def open(self, accepted: socket.socket, tls: ssl.SSLContext | None) -> None:
        """Start on an accepted socket, with TLS if there is a context."""
        _check_after_silence(accepted)
        self._opening = asyncio.get_running_loop().create_task(self._open(accepted, tls))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not subclasses of asyncio.Transport.
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(_UNSENT)
        self._flush()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._owner.buffer

    def buffer_updated(self, nbytes: int) -> None:
        buffer = self._owner.buffer
        self._take_turn(buffer[:nbytes])
        if self._greeting is not None and self._grpc.greeted:
            self._greeting.cancel()
            self._greeting = None
        if self._unread or nbytes == len(buffer):
            # There is more to read. uvloop would read all of it before any other connection.
            self._pause()

    def _take_turn(self, data: memoryview) -> None:
        self.last_received_at = now = monotonic()
        began = spent = thread_time()
        start, size = 0, len(data)
        while start < size:
            stop = start + self._step
            self._grpc.receive(bytes(data[start:stop]), now)
            start = stop
            if self._step < TURN_BYTES or start < size:
                # Measure CPU time: by the clock, every piece would seem slow on a busy machine.
                before, spent = spent, thread_time()
                self._step = _next_step(self._step, spent - before)
                if spent - began > TURN_SECONDS:
                    break
        self._unread = bytes(data[start:])
        self._flush()

    def _pause(self) -> None:
        """Let the other connections have a turn before the next turn of this one."""
        transport = self._transport
        if transport is not None and not transport.is_closing():
            transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._read_on)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()

    def pause_writing(self) -> None:
        self._may_read = False
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._may_read = True
        self._read_on()

    def drain(self) -> None:
        """Accept no new streams."""
        self._grpc.drain()
        self._flush()

    def abort(self) -> None:
        """Close the connection at once."""
        if self._opening is not None:
            self._opening.cancel()
        if self._transport is not None:
            self._transport.abort()
        self._end()

    async def _open(self, accepted: socket.socket, tls: ssl.SSLContext | None) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(
                lambda: self,
                accepted,
                ssl=tls,
                ssl_handshake_timeout=None if tls is None else GREETING_SECONDS,
            )
        except OSError as error:  # including TLS errors
            log.debug("connection not opened", extra=fields(why=error))
            self._end()
        finally:
            self._opening = None
            if self._over:
                accepted.close()

    def _read_on(self) -> None:
        transport = self._transport
        if transport is None or not self._may_read or transport.is_closing():
            return
        if self._unread:
            unread, self._unread = self._unread, b""
            self._take_turn(memoryview(unread))
            self._pause()
        else:
            transport.resume_reading()

    def _flush(self) -> None:
        transport = self._transport
        if transport is None:
            return
        if data := self._grpc.take():
            transport.write(data)
        if self._grpc.over:
            transport.close()

    def _end(self) -> None:
        """Break all reference cycles, so that the connection is freed without the collector."""
        if self._over:
            return
        self._over = True
        self._transport = None
        if self._greeting is not None:
            self._greeting.cancel()
            self._greeting = None
        self._grpc.lost()
        self._owner.forget(self)


def _next_step(step: int, seconds: float) -> int:
    """Return how many bytes to handle before the next check, after `step` bytes took `seconds`."""
    if seconds > TURN_SECONDS:
        return max(step // 2, _FEWEST_TURN_BYTES)
    return step if seconds > TURN_SECONDS / 4 else min(2 * step, TURN_BYTES)


def _check_after_silence(connection: socket.socket) -> None:
    if connection.family != socket.AF_UNIX:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(socket, "TCP_KEEPIDLE"):  # not on macOS
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _SILENCE_SECONDS)
