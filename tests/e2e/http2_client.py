"""An HTTP/2 client that can send trailers after a request's body."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from h2.connection import H2Connection
from h2.events import ConnectionTerminated, DataReceived, ResponseReceived, StreamEnded, StreamReset

from tests.e2e.scene import Scene
from tests.extent import PATIENCE

_STREAM = 1
_PAUSE = 0.01
"""Seconds between two parts, so that Envoy passes each part on before the next one arrives."""


@dataclass
class Http2Response:
    """A response, as far as it has arrived."""

    status: int = 0
    body: bytes = b""
    is_complete: bool = False


class Http2Request:
    """One request on a connection of its own."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._connection = H2Connection()
        self._connection.initiate_connection()
        self.response = Http2Response()

    async def send(
        self,
        path: str,
        body: bytes,
        *,
        cuts: Sequence[int],
        announce: bool,
        trailers: Sequence[tuple[str, str]],
    ) -> None:
        """Send the request; the body in parts that end at `cuts`."""
        headers = [(":method", "POST"), (":path", path), (":scheme", "http"), (":authority", "x")]
        headers.append(("content-type", "application/json"))
        if announce:
            headers.append(("content-length", str(len(body))))
        self._connection.send_headers(_STREAM, headers)
        places = [0, *cuts, len(body)]
        for start, end in pairwise(places):
            await self._send_part(body[start:end], end=end == len(body) and not trailers)
        if trailers:
            self._connection.send_headers(_STREAM, trailers, end_stream=True)
        self._flush()

    async def read(self) -> Http2Response:
        """Read the response to its end."""
        while not self.response.is_complete:
            await self._receive()
        return self.response

    def close(self) -> None:
        """Close the connection."""
        self._writer.close()

    async def _send_part(self, part: bytes, *, end: bool) -> None:
        while part:
            window = self._connection.local_flow_control_window(_STREAM)
            size = min(window, self._connection.max_outbound_frame_size, len(part))
            if not size:
                self._flush()
                await self._receive()
                if self.response.is_complete:
                    return
                continue
            frame, part = part[:size], part[size:]
            self._connection.send_data(_STREAM, frame, end_stream=end and not part)
        self._flush()
        await asyncio.sleep(_PAUSE)

    async def _receive(self) -> None:
        data = await asyncio.wait_for(self._reader.read(65_536), PATIENCE)
        if not data:
            self.response.is_complete = True
        for event in self._connection.receive_data(data) if data else ():
            if isinstance(event, ResponseReceived):
                self.response.status = int(dict(event.headers)[b":status"])
            elif isinstance(event, DataReceived):
                self.response.body += event.data
                self._connection.acknowledge_received_data(
                    event.flow_controlled_length, event.stream_id
                )
            elif isinstance(event, StreamEnded | StreamReset | ConnectionTerminated):
                self.response.is_complete = True
        self._flush()

    def _flush(self) -> None:
        self._writer.write(self._connection.data_to_send())


async def send_http2(
    scene: Scene,
    path: str,
    body: bytes,
    *,
    cuts: Sequence[int] = (),
    announce: bool = False,
    trailers: Sequence[tuple[str, str]] = (("x-checksum", "1"),),
) -> Http2Response:
    """Send a request, by default with trailers, and read its response.

    `announce` sends `content-length`. The body is sent in parts that end at `cuts`.
    """
    streams = await asyncio.open_connection("127.0.0.1", scene.envoy.ports["llm"])
    request = Http2Request(*streams)
    await request.send(path, body, cuts=cuts, announce=announce, trailers=trailers)
    response = await request.read()
    request.close()
    return response
