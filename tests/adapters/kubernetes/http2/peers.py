"""A scripted HTTP/2 server on loopback, without TLS."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, Event, RequestReceived, StreamEnded, StreamReset
from hyperframe.frame import GoAwayFrame

from extproc.adapters.kubernetes.connections import open_http2
from extproc.adapters.kubernetes.http2_connection import Http2Connection
from extproc.adapters.kubernetes.http2_stream import Http2Stream
from extproc.adapters.kubernetes.response import Request, Timeouts
from tests.extent import PATIENCE

PATIENT = Timeouts(PATIENCE, PATIENCE, PATIENCE)
OK = [(":status", "200"), ("content-type", "application/json")]


class Peer(asyncio.Protocol):
    """The server's side of a connection; a test decides what it does."""

    def __init__(self) -> None:
        self.h2 = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8"))
        self.events: list[Event] = []
        self.requests: list[dict[str, str]] = []
        self.bodies: dict[int, bytes] = {}
        self.ended: set[int] = set()
        self.resets: list[tuple[int, int]] = []
        self.lost = asyncio.Event()
        self.silent = False
        """True to ignore everything that arrives."""
        self.transport: asyncio.Transport
        self._news = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.h2.initiate_connection()
        self.flush()

    def data_received(self, data: bytes) -> None:
        if self.silent:
            return
        for event in self.h2.receive_data(data):
            self._on_event(event)
        self.flush()
        self._news.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()

    async def until(self, condition: Callable[[], Any]) -> None:
        """Wait for bytes that make the condition true."""
        async with asyncio.timeout(PATIENCE):
            while not condition():
                self._news.clear()
                await self._news.wait()

    def flush(self) -> None:
        self.transport.write(self.h2.data_to_send())

    def respond(self, number: int, *data: bytes, end: bool = True) -> None:
        """Send a response, as far as the windows allow."""
        self.h2.send_headers(number, OK)
        for one in data:
            self.h2.send_data(number, one)
        if end:
            self.h2.end_stream(number)
        self.flush()

    def send(self, number: int, data: bytes) -> None:
        self.h2.send_data(number, data)
        self.flush()

    async def send_all(self, number: int, data: bytes) -> None:
        """Send data as the windows open, then the end."""
        while data:
            room = min(self.h2.local_flow_control_window(number), 16_384)
            if room == 0:
                self._news.clear()
                await self._news.wait()
                continue
            self.send(number, data[:room])
            data = data[room:]
        self.h2.end_stream(number)
        self.flush()

    def reset(self, number: int, code: int) -> None:
        self.h2.reset_stream(number, code)
        self.flush()

    def go_away(self, last: int, debug: bytes = b"") -> bytes:
        """Return the frame, because the library would end the connection."""
        return GoAwayFrame(0, last_stream_id=last, additional_data=debug).serialize()

    def _on_event(self, event: Event) -> None:
        self.events.append(event)
        number = getattr(event, "stream_id", None) or 0
        if isinstance(event, RequestReceived):
            self.requests.append(dict(cast("Any", event.headers)))
            self.bodies[number] = b""
        elif isinstance(event, DataReceived):
            self.bodies[number] += event.data or b""
            self.h2.acknowledge_received_data(event.flow_controlled_length or 0, number)
        elif isinstance(event, StreamEnded):
            self.ended.add(number)
        elif isinstance(event, StreamReset):
            self.resets.append((number, int(event.error_code or 0)))


@asynccontextmanager
async def connected(peer: asyncio.Protocol | None = None) -> AsyncIterator[Any]:
    """Yield the two ends of a connection."""
    peer = peer or Peer()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: peer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    connection = await open_http2("127.0.0.1", port, None)
    assert connection is not None
    try:
        yield connection, peer
    finally:
        connection.abort()
        server.close()


def request(path: str = "/", *, body: bytes | None = None, timeouts: Timeouts = PATIENT) -> Request:
    method = "GET" if body is None else "POST"
    url = f"https://api.example{path}"
    return Request(method, url, path, {"Authorization": "Bearer t"}, body, timeouts)


async def opened(
    connection: Http2Connection, peer: Peer, *data: bytes, end: bool = False
) -> tuple[Http2Stream, int]:
    """Return a response that has begun, and its number."""
    before = len(peer.requests)
    sending = asyncio.create_task(connection.request(request()))
    await peer.until(lambda: len(peer.requests) > before)
    number = max(peer.bodies)
    peer.respond(number, *data, end=end)
    return await sending, number
