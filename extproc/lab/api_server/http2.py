"""HTTP/2 for the API port: each stream becomes one HTTP/1.1 connection to the application.

aiohttp speaks only HTTP/1.1. So the application, with its faults, is the same over both.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from typing import Any, cast

import httptools
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    RequestReceived,
    StreamEnded,
    StreamReset,
)
from h2.exceptions import H2Error
from hyperframe.frame import GoAwayFrame

from extproc.lab.api_server.faults import Faults

Factory = Callable[[], asyncio.Protocol]

PROTOCOLS = ["h2", "http/1.1"]
"""The protocols that the API port offers in the TLS handshake."""

_RESET = struct.pack("ii", 1, 0)
"""Value of SO_LINGER with which closing the socket resets the connection."""


def reset(transport: asyncio.Transport) -> None:
    """Reset a connection."""
    client: socket.socket = transport.get_extra_info("socket")
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    transport.abort()


class Negotiated(asyncio.Protocol):
    """A new connection, which continues with the protocol that its TLS handshake chose."""

    def __init__(self, factory: Factory, faults: Faults, opened: set[Http2Server]) -> None:
        self._factory = factory
        self._faults = faults
        self._opened = opened

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        tls: Any = transport.get_extra_info("ssl_object")
        protocol = self._factory()
        if tls is not None and tls.selected_alpn_protocol() == "h2":
            protocol = Http2Server(self._factory, self._faults, self._opened)
        transport.set_protocol(protocol)
        protocol.connection_made(transport)


class Http2Server(asyncio.Protocol):
    """One HTTP/2 connection."""

    def __init__(self, factory: Factory, faults: Faults, opened: set[Http2Server]) -> None:
        self._factory = factory
        self._faults = faults
        self._opened = opened
        self._h2 = H2Connection(H2Configuration(client_side=False))
        self._streams: dict[int, _Stream] = {}
        self._held: list[bytes] = []
        self._thawing: asyncio.Task[None] | None = None
        self._leaving = False
        self._last = 0
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._opened.add(self)
        self._h2.initiate_connection()
        self.flush()

    def data_received(self, data: bytes) -> None:
        if self._faults.thawed.is_set() and self._thawing is None:
            self._receive(data)
            return
        # A frozen server does not even respond to a PING.
        self._held.append(data)
        if self._thawing is None:
            self._thawing = asyncio.create_task(self._thaw())

    def connection_lost(self, exc: Exception | None) -> None:
        self._opened.discard(self)
        if self._thawing is not None:
            self._thawing.cancel()
        for stream in list(self._streams.values()):
            stream.lose()

    def go_away(self) -> None:
        """Accept no more streams, and close the connection when the open ones have ended."""
        self._leaving = True
        goaway = GoAwayFrame(0, last_stream_id=self._last, error_code=0)
        self.transport.write(goaway.serialize())
        self.finished(0)

    def reset(self) -> None:
        """Reset the connection."""
        reset(self.transport)

    def headers(self, number: int, fields: list[tuple[str, str]]) -> None:
        """Send the headers of a response."""
        self._h2.send_headers(number, fields)
        self.flush()

    def send(self, number: int, data: bytearray, *, ended: bool) -> bool:
        """Send and remove what the windows allow; return True when the response is complete."""
        while data:
            size = min(self._h2.local_flow_control_window(number), self._h2.max_outbound_frame_size)
            if size <= 0:
                break
            self._h2.send_data(number, bytes(data[:size]))
            del data[:size]
        if not data and ended:
            self._h2.end_stream(number)
        self.flush()
        return not data and ended

    def break_off(self, number: int) -> None:
        """End a response before it is complete."""
        self._h2.reset_stream(number, ErrorCodes.INTERNAL_ERROR)
        self.flush()

    def finished(self, number: int) -> None:
        """Forget a stream that has ended."""
        self._streams.pop(number, None)
        if self._leaving and not self._streams:
            self.transport.close()

    def flush(self) -> None:
        """Write the frames that are ready."""
        self.transport.write(self._h2.data_to_send())

    async def _thaw(self) -> None:
        await self._faults.thawed.wait()
        self._thawing = None
        held, self._held = b"".join(self._held), []
        self._receive(held)

    def _receive(self, data: bytes) -> None:
        try:
            for event in self._h2.receive_data(data):
                self._on_event(event)
        except H2Error:
            self.flush()
            self.transport.close()
            return
        for stream in list(self._streams.values()):
            stream.send()
        self.flush()

    def _on_event(self, event: Event) -> None:
        if isinstance(event, ConnectionTerminated):
            self.transport.close()
        elif isinstance(event, RequestReceived):
            number = event.stream_id or 0
            if not self._leaving:
                self._last = max(self._last, number)
                self._streams[number] = _Stream(self, number, self._factory())
                self._streams[number].begin(cast("Any", event.headers))
        elif stream := self._streams.get(getattr(event, "stream_id", None) or 0):
            if isinstance(event, DataReceived):
                size = event.flow_controlled_length or 0
                self._h2.acknowledge_received_data(size, stream.number)
                stream.body += event.data or b""
            elif isinstance(event, StreamEnded):
                stream.request_ended()
            elif isinstance(event, StreamReset):
                stream.lose()


class _Stream(asyncio.Transport):
    """The transport of one HTTP/1.1 connection, which carries the request of one stream."""

    def __init__(self, server: Http2Server, number: int, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self.number = number
        self.body = bytearray()
        self._head = ""
        self._server = server
        self._protocol = protocol
        self._parser = httptools.HttpResponseParser(self)
        self._fields: list[tuple[str, str]] = []
        self._unsent = bytearray()
        self._complete = False
        self._gone = False
        protocol.connection_made(self)

    def begin(self, fields: list[tuple[bytes, bytes]]) -> None:
        """Take the headers of the request."""
        named = {name.decode(): value.decode() for name, value in fields}
        lines = [f"{named[':method']} {named[':path']} HTTP/1.1"]
        lines += [f"host: {named[':authority']}", "connection: close"]
        lines += [f"{name}: {value}" for name, value in named.items() if name[0] != ":"]
        self._head = "\r\n".join(lines)

    def request_ended(self) -> None:
        """Pass the request to the application."""
        head = f"{self._head}\r\ncontent-length: {len(self.body)}\r\n\r\n"
        self._protocol.data_received(head.encode() + self.body)

    def lose(self) -> None:
        """End the application's connection."""
        if not self._gone:
            self._gone = True
            self._server.finished(self.number)
            self._protocol.connection_lost(None)

    def send(self) -> None:
        """Send what the windows allow."""
        if self._fields == [] and not self._gone:
            done = self._server.send(self.number, self._unsent, ended=self._complete)
            if done:
                self.lose()

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() not in (b"connection", b"transfer-encoding"):
            self._fields.append((name.decode().lower(), value.decode()))

    def on_headers_complete(self) -> None:
        status = str(self._parser.get_status_code())
        self._server.headers(self.number, [(":status", status), *self._fields])
        self._fields = []

    def on_body(self, data: bytes) -> None:
        self._unsent += data

    def on_message_complete(self) -> None:
        self._complete = True

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._gone:
            self._parser.feed_data(bytes(data))
            self.send()

    def close(self) -> None:
        if not self._gone and not self._complete:
            self._server.break_off(self.number)
            asyncio.get_running_loop().call_soon(self.lose)

    def abort(self) -> None:
        self._server.reset()

    def is_closing(self) -> bool:
        return self._gone

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._server.transport.get_extra_info(name, default)

    def pause_reading(self) -> None:
        """Do nothing: the request has arrived."""

    def resume_reading(self) -> None:
        """Do nothing: the request has arrived."""
