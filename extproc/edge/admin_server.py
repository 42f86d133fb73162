"""The server of the admin port: its connections, their number, and its log."""

from __future__ import annotations

import logging
import socket
from typing import Any, cast

from aiohttp import web
from aiohttp.abc import AbstractAccessLogger
from aiohttp.http import HttpProcessingError

from extproc.adapters.observability.log_sampler import LogSampler
from extproc.adapters.observability.logs import fields
from extproc.edge.admin_connection import AdminConnection
from extproc.edge.listening import Listener, most_connections

log = logging.getLogger("extproc.admin")

MOST_CONNECTIONS = 128
"""Open connections at most."""

_FILES_DIVISOR = 8
"""Connections take an eighth of the open files at most."""

_STOP_SECONDS = 1.0
"""Time for the last responses. A request that is not complete then is dropped."""

_MALFORMED = (HttpProcessingError, web.RequestPayloadError)


class AdminServer:
    """The server of the admin port, on HOST:PORT or unix:PATH."""

    def __init__(self, app: web.Application) -> None:
        self._runner = web.AppRunner(
            app,
            access_log=log,
            access_log_class=_Responses,
            logger=_Errors(log, LogSampler()),
            handle_signals=False,
            shutdown_timeout=_STOP_SECONDS,
        )
        self._connections: dict[AdminConnection, None] = {}
        self._listener: Listener | None = None

    @property
    def sockets(self) -> list[socket.socket]:
        """The listening sockets."""
        return [] if self._listener is None else self._listener.sockets

    @property
    def connections(self) -> list[AdminConnection]:
        """The open connections."""
        return list(self._connections)

    async def start(self, address: str) -> None:
        """Bind the address and serve. Raises CannotListen if that fails."""
        await self._runner.setup()
        self._listener = Listener(address, self._accepted)

    async def stop(self) -> None:
        """Close the port and its connections."""
        if self._listener is not None:
            await self._listener.close()
            self._listener = None
        await self._runner.cleanup()
        for connection in self.connections:
            connection.abort()

    def _accepted(self, accepted: socket.socket) -> None:
        server = self._runner.server
        assert server is not None, "the runner is set up"
        if len(self._connections) >= _most_connections():
            # The one that has waited longest for its client. A probe sends its request at once.
            min(self._connections, key=lambda one: one.last_active_at).abort()
        connection = AdminConnection(server(), self._forget)
        self._connections[connection] = None
        connection.open(accepted)

    def _forget(self, connection: AdminConnection) -> None:
        self._connections.pop(connection, None)


class _Responses(AbstractAccessLogger):
    """Reports to connections that their responses were written.

    It logs nothing: probes come every few seconds, and their log lines would hide all others.
    """

    def log(self, request: web.BaseRequest, response: web.StreamResponse, time: float) -> None:
        connection = None if request.transport is None else request.transport.get_protocol()
        if isinstance(connection, AdminConnection):
            connection.answered()


class _Errors(logging.LoggerAdapter[logging.Logger]):
    """The log of failed requests, at a limited rate.

    aiohttp would log each with its traceback, which quotes the client's headers.
    """

    def __init__(self, logger: logging.Logger, sampler: LogSampler) -> None:
        super().__init__(logger, {})
        self._sampler = sampler

    def debug(self, msg: object, *args: object, **named: Any) -> None:
        """Log an error too: that of a peer that sends another protocol than HTTP."""
        if named.get("exc_info") is not None:
            self.exception(msg, *args, **named)

    def exception(self, msg: object, *args: object, **named: Any) -> None:
        """Log an error that aiohttp caught: the client's, or one of a handler."""
        error = cast("BaseException | None", named.get("exc_info"))
        malformed = isinstance(error, _MALFORMED)
        message = "malformed admin request" if malformed else "admin request failed"
        suppressed = self._sampler.admit(message)
        if suppressed is None:
            return
        earlier = {"suppressed": suppressed} if suppressed else {}
        if malformed:
            log.info(message, extra=fields(error=type(error).__name__, **earlier))
        else:
            log.error(message, extra=fields(**earlier), exc_info=error)


def _most_connections() -> int:
    return most_connections(MOST_CONNECTIONS, _FILES_DIVISOR)
