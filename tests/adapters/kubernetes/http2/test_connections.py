"""Connections are opened when requests need them, and closed when no request does."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme
import uvloop
import yaml
from h2.events import Event, RequestReceived
from h2.settings import SettingCodes

from extproc.adapters.kubernetes import connections, http2_ping
from extproc.adapters.kubernetes.connections import Connections
from extproc.adapters.kubernetes.http2_connection import PROTOCOL, Http2Connection
from extproc.adapters.kubernetes.http2_stream import Http2Stream
from extproc.adapters.kubernetes.http_api import KubernetesApi
from tests.adapters.documents import eventually
from tests.adapters.kubernetes.http2.peers import Peer, request
from tests.adapters.kubernetes.http_api.servers import write_kubeconfig

AUTHORITY = trustme.CA()
HOST = "api.example"


class Limited(Peer):
    """A server that accepts few streams on a connection, and begins a response to each request."""

    def __init__(self, streams: int) -> None:
        super().__init__()
        self.h2.local_settings[SettingCodes.MAX_CONCURRENT_STREAMS] = streams
        self.h2.local_settings.acknowledge()

    def _on_event(self, event: Event) -> None:
        super()._on_event(event)
        if isinstance(event, RequestReceived):
            self.respond(event.stream_id or 0, end=False)


class Server:
    """A server with TLS, and the connections that it accepted."""

    def __init__(
        self, connections: Connections, listener: asyncio.Server, peers: list[Peer]
    ) -> None:
        self.connections = connections
        self.listener = listener
        self.peers = peers

    async def begin(self) -> Http2Stream:
        """Send a request, and return its response, which has begun."""
        connection = await self.connections.choose()
        assert isinstance(connection, Http2Connection)
        return await connection.request(request())

    @property
    def open(self) -> int:
        """Number of open connections."""
        return sum(not peer.lost.is_set() for peer in self.peers)


Serve = Callable[..., AbstractAsyncContextManager[Server]]


@pytest.fixture
def serve(tmp_path: Path) -> Serve:
    """Return a context manager that starts a server; `streams` limits those of a connection."""

    @asynccontextmanager
    async def served(
        streams: int = 100, host: str = "127.0.0.1", accepts: bool = True
    ) -> AsyncIterator[Server]:
        peers: list[Peer] = []

        def accept() -> Peer:
            peers.append(Limited(streams))
            return peers[-1]

        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        AUTHORITY.issue_cert("127.0.0.1", HOST).configure_cert(tls)
        tls.set_alpn_protocols([PROTOCOL])
        # The kernel connects clients even if the server does not accept yet.
        listening = socket.create_server(("127.0.0.1", 0))
        loop = asyncio.get_running_loop()
        listener = await loop.create_server(accept, sock=listening, ssl=tls, start_serving=accepts)
        url = f"https://{host}:{listening.getsockname()[1]}"
        api = await KubernetesApi.connect(_kubeconfig(tmp_path, url))
        yield Server(api._connections, listener, peers)
        await api.close()
        listener.close()

    return served


def _kubeconfig(directory: Path, server: str) -> Path:
    path = write_kubeconfig(directory, server)
    AUTHORITY.cert_pem.write_to_path(directory / "ca.crt")
    document = yaml.safe_load(path.read_text())
    cluster = document["clusters"][0]["cluster"]
    cluster["certificate-authority"] = str(directory / "ca.crt")
    path.write_text(yaml.safe_dump(document))
    return path


def test_connections_open_on_uvloop(serve: Serve) -> None:
    async def begin() -> None:
        async with serve() as server:
            await server.begin()

    # The other tests use asyncio, and the sidecar does not.
    uvloop.run(begin())


async def test_requests_beyond_the_servers_limit_get_connections_of_their_own(serve: Serve) -> None:
    async with serve(streams=2) as server:
        await asyncio.gather(*(server.begin() for _ in range(15)))
        assert server.open == 8


async def test_connections_that_are_not_needed_any_more_are_closed(serve: Serve) -> None:
    async with serve(streams=1) as server:
        responses = await asyncio.gather(*(server.begin() for _ in range(5)))
        for one in responses[1:]:
            one.release()
        await server.begin()
        await eventually(lambda: server.open == 2)
        assert len(server.peers) == 5


async def test_server_that_accepts_no_request_gets_one_connection_for_each(serve: Serve) -> None:
    async with serve(streams=0) as server:
        for _ in range(3):
            with pytest.raises(ConnectionError, match="accepts no request"):
                await server.connections.choose()
        await eventually(lambda: server.open == 0)
        assert len(server.peers) == 3


async def test_connection_that_is_being_closed_sends_no_ping(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http2_ping, "PING_SECONDS", 0.01)
    errors: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, error: errors.append(error))
    async with serve() as server:
        connection = await server.connections.choose()
        assert isinstance(connection, Http2Connection)
        # TLS waits for the server's end, which does not come.
        server.peers[0].transport.pause_reading()
        connection.retire()
        await asyncio.sleep(0.05)
        assert errors == []


async def test_handshake_may_take_longer_than_the_connection(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "CONNECT_SECONDS", 0.2)
    async with serve(accepts=False) as server:
        opening = asyncio.create_task(server.connections.choose())
        await asyncio.sleep(0.3)
        await server.listener.start_serving()
        assert isinstance(await opening, Http2Connection)


async def test_address_that_does_not_respond_delays_no_other(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serve(host=HOST) as server:
        port = server.listener.sockets[0].getsockname()[1]
        addresses = [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, port))
            for ip in ("127.0.0.2", "127.0.0.1")
        ]
        # The kernel drops further connections to a listener whose queue is full.
        with (
            socket.create_server(("127.0.0.2", port), backlog=0) as hole,
            socket.create_connection(hole.getsockname()),
        ):
            monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: addresses)
            assert isinstance(await server.connections.choose(), Http2Connection)
