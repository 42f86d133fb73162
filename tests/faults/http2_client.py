"""A client with many streams on few connections, so that streams can outnumber open files."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

import h2.config
import h2.connection
import h2.events

from tests.e2e.scene import CHAT


@dataclass
class Response:
    """The part of a response that has arrived."""

    status: int = 0
    body: bytes = b""


class Http2Client(asyncio.Protocol):
    """One connection. If a stream or the connection breaks off, its response stays incomplete."""

    def __init__(self) -> None:
        self._http2 = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        self._streams: dict[int, tuple[Response, asyncio.Future[Response]]] = {}

    @classmethod
    async def connect(cls, port: int) -> Http2Client:
        """Connect to a port on loopback."""
        loop = asyncio.get_running_loop()
        _, client = await loop.create_connection(cls, "127.0.0.1", port)
        return client

    def post(self, bodies: Iterable[bytes]) -> list[tuple[bytes, asyncio.Future[Response]]]:
        """Send these chats at once. Return each with the future of its complete response."""
        responses = [(body, self._send(body)) for body in bodies]
        self._flush()
        return responses

    def close(self) -> None:
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)
        self._http2.initiate_connection()
        self._flush()

    def data_received(self, data: bytes) -> None:
        for event in self._http2.receive_data(data):
            self._handle(event)
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        for stream in list(self._streams):
            self._end(stream)

    def _send(self, body: bytes) -> asyncio.Future[Response]:
        stream: int = self._http2.get_next_available_stream_id()
        headers = {":method": "POST", ":scheme": "http", ":path": CHAT, ":authority": "llm"}
        headers["content-length"] = str(len(body))
        self._http2.send_headers(stream, list(headers.items()))
        self._http2.send_data(stream, body, end_stream=True)
        future = asyncio.get_running_loop().create_future()
        self._streams[stream] = (Response(), future)
        return future

    def _handle(self, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.ResponseReceived):
            response, _ = self._streams[event.stream_id]
            response.status = int(event.headers[0][1])
        elif isinstance(event, h2.events.DataReceived):
            response, _ = self._streams[event.stream_id]
            response.body += event.data
            self._http2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, h2.events.StreamEnded | h2.events.StreamReset):
            self._end(event.stream_id)

    def _end(self, stream: int) -> None:
        response, future = self._streams.pop(stream)
        future.set_result(response)

    def _flush(self) -> None:
        self._transport.write(self._http2.data_to_send())
