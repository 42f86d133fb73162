"""A connection of the admin port, within limits of time."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from time import monotonic
from typing import cast

from extproc.adapters.observability.logs import fields

log = logging.getLogger("extproc.admin")

REQUEST_SECONDS = 10.0
"""Time limit for a request and its response, from the connection or the request's first byte."""

IDLE_SECONDS = 75.0
"""Time limit between a response and the next request. Prometheus scrapes at least every minute."""


class AdminConnection(asyncio.Protocol):
    """An accepted connection, until it is closed. It passes all events to aiohttp's protocol.

    All handlers of the admin port respond at once, so a connection always waits for its client.
    """

    def __init__(self, http: asyncio.Protocol, forget: Callable[[AdminConnection], object]) -> None:
        self._http = http
        self._forget = forget
        self._transport: asyncio.Transport | None = None
        self._opening: asyncio.Task[None] | None = None
        self._idle = False
        """True after a response, until the next request begins."""
        self._over = False
        self._limit = asyncio.get_running_loop().call_later(REQUEST_SECONDS, self.abort)
        self.last_active_at = monotonic()
        """Time of the last received bytes, or of the connection, monotonic."""

    def open(self, accepted: socket.socket) -> None:
        """Start on an accepted socket."""
        self._opening = asyncio.get_running_loop().create_task(self._open(accepted))

    def answered(self) -> None:
        """Wait for the next request, because a response was written."""
        self._idle = True
        self._limit_to(IDLE_SECONDS)

    def abort(self) -> None:
        """Close the connection at once, also if the client does not read its response."""
        if self._opening is not None:
            self._opening.cancel()
        if self._transport is not None:
            self._transport.abort()
        self._end()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not subclasses of asyncio.Transport.
        self._transport = cast("asyncio.Transport", transport)
        self._http.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        self.last_active_at = monotonic()
        if self._idle:
            self._idle = False
            self._limit_to(REQUEST_SECONDS)
        self._http.data_received(data)

    def eof_received(self) -> bool | None:
        return self._http.eof_received()

    def pause_writing(self) -> None:
        self._http.pause_writing()

    def resume_writing(self) -> None:
        self._http.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._http.connection_lost(exc)
        self._end()

    async def _open(self, accepted: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(lambda: self, accepted)
        except OSError as error:
            log.debug("connection not opened", extra=fields(why=error))
            self._end()
        finally:
            self._opening = None
            if self._over:
                accepted.close()

    def _limit_to(self, seconds: float) -> None:
        self._limit.cancel()
        if not self._over:
            self._limit = asyncio.get_running_loop().call_later(seconds, self.abort)

    def _end(self) -> None:
        if not self._over:
            self._over = True
            self._transport = None
            self._limit.cancel()
            self._forget(self)
