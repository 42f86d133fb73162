"""The API's listening socket."""

from __future__ import annotations

import asyncio
import socket
import ssl
from pathlib import Path
from typing import cast

from aiohttp import web

from extproc.lab.api_server.faults import Faults
from extproc.lab.api_server.http2 import PROTOCOLS, Factory, Http2Server, Negotiated, reset

HOST = "127.0.0.1"

BACKLOG = 1024


class ApiPort:
    """The API's listening socket, which can be closed and opened again on the same port."""

    def __init__(
        self, runner: web.AppRunner, faults: Faults, port: int, certificate: Path | None = None
    ) -> None:
        self._runner = runner
        self._faults = faults
        self._http2: set[Http2Server] = set()
        self.http2 = True
        """True to offer HTTP/2 on new connections with TLS."""

        self._certificate = certificate
        self._server: asyncio.Server | None = None
        # This socket stays bound, so that no other process gets the port while it is closed.
        self._reservation = bound(port)
        self.number: int = self._reservation.getsockname()[1]

    async def open(self) -> None:
        """Start to listen, with the current certificate; do nothing if the port is open."""
        if self._server is None:
            factory = self._runner.server
            assert factory is not None
            listening = bound(self.number)
            loop = asyncio.get_running_loop()
            self._server = await loop.create_server(
                lambda: Negotiated(cast("Factory", factory), self._faults, self._http2),
                sock=listening,
                backlog=BACKLOG,
                ssl=self._tls(),
            )

    async def close(self) -> None:
        """Refuse new connections and reset open ones."""
        if self._server is not None:
            self._server.close()
            self._server = None
            self._reset_connections()
            # Connections that were being accepted appear a little later.
            await asyncio.sleep(0.01)
            self._reset_connections()

    def go_away(self) -> None:
        """Announce on each HTTP/2 connection that it ends after its streams."""
        for connection in list(self._http2):
            connection.go_away()

    def _tls(self) -> ssl.SSLContext | None:
        if self._certificate is None:
            return None
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self._certificate)
        context.set_alpn_protocols(PROTOCOLS if self.http2 else PROTOCOLS[1:])
        return context

    def _reset_connections(self) -> None:
        assert self._runner.server is not None
        for http2 in list(self._http2):
            http2.reset()
        for connection in self._runner.server.connections:
            if (transport := connection.transport) is not None:
                reset(transport)


def bound(port: int) -> socket.socket:
    """Return a socket that is bound to a port, but does not listen."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind((HOST, port))
    return made
