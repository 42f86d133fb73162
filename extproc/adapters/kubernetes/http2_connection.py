"""One HTTP/2 connection to the API server, shared by all requests and watches.

A PING every 15 seconds notices a path, a proxy or a server that no longer responds, as in client-go
(`ReadIdleTimeout` and `PingTimeout` of Go's HTTP/2 transport). So watches can last for minutes.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from typing import Any, cast

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    DataReceived,
    Event,
    PingAckReceived,
    RemoteSettingsChanged,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    WindowUpdated,
)
from h2.exceptions import H2Error
from h2.settings import SettingCodes, Settings

from extproc.adapters.kubernetes.http2_frames import FrameSplitter, GoAway
from extproc.adapters.kubernetes.http2_ping import Ping
from extproc.adapters.kubernetes.http2_stream import Http2Stream, NotProcessed
from extproc.adapters.kubernetes.response import Request
from extproc.adapters.observability.logs import fields

log = logging.getLogger("extproc.kubernetes")

PROTOCOL = "h2"
"""The name of HTTP/2 in the TLS handshake (ALPN)."""

_STREAM_WINDOW = 2**20
_CONNECTION_WINDOW = 2**30
"""Larger than the windows of all streams, so that a slow reader blocks only its own stream."""

_HEADER_BYTES = 2**16
_SETTINGS = {
    SettingCodes.ENABLE_PUSH: 0,
    SettingCodes.INITIAL_WINDOW_SIZE: _STREAM_WINDOW,
    SettingCodes.MAX_HEADER_LIST_SIZE: _HEADER_BYTES,
}


class Http2Connection(asyncio.Protocol):
    """A connection; `has_room` says if it accepts another request."""

    notices_silence = True
    """A watch may last long, because the connection ends if the server does not respond."""

    def __init__(self, tls: ssl.SSLContext | None) -> None:
        self.tls = tls
        """The context that the connection was made with."""
        self.greeted: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        """True once the server has sent its settings; False if it does not speak HTTP/2."""
        self._h2 = H2Connection(H2Configuration(client_side=True))
        self._h2.local_settings = Settings(client=True, initial_values=_SETTINGS)
        self._frames = FrameSplitter()
        self._streams: dict[int, Http2Stream] = {}
        self._accepts = True
        self._transport: asyncio.Transport | None = None
        self._ping = Ping(self._send_ping, self._on_silence)

    @property
    def has_room(self) -> bool:
        """True if the server accepts another stream."""
        most = self._h2.remote_settings.max_concurrent_streams
        return self._accepts and len(self._streams) < most

    @property
    def idle(self) -> bool:
        """True if no request uses the connection."""
        return not self._streams

    @property
    def closed(self) -> bool:
        """True if the connection has ended."""
        return self._transport is None or self._transport.is_closing()

    async def request(self, request: Request) -> Http2Stream:
        """Send a request, and return its response when it begins.

        Raises TimeoutError and OSError; NotProcessed if another connection may accept it.
        """
        if not self.has_room:
            raise NotProcessed("HTTP/2: no further stream on this connection")
        number = self._h2.get_next_available_stream_id()
        stream = Http2Stream(number, request.timeouts, self._consumed, self._finished)
        stream.is_safe = request.method == "GET"
        self._streams[number] = stream
        try:
            self._h2.send_headers(number, request.fields(), end_stream=not request.body)
            self._flush()
            if request.body:
                await self._send_body(stream, request.body)
            await stream.opened()
        except H2Error as error:
            self._fail(f"HTTP/2: {error}")
            stream.release()
            raise ConnectionError(f"HTTP/2: {error}") from None
        except BaseException:
            stream.release()
            raise
        return stream

    def retire(self) -> None:
        """Accept no more requests, and close the connection when it has none."""
        self._accepts = False
        if not self._streams and self._transport is not None and not self.closed:
            self._ping.stop()
            self._h2.close_connection()
            self._flush()
            self._transport.close()

    def abort(self) -> None:
        """Close the connection; requests fail."""
        self._fail("connection closed")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        tls: Any = transport.get_extra_info("ssl_object")
        if tls is not None and tls.selected_alpn_protocol() != PROTOCOL:
            self._accepts = False
            self.greeted.set_result(False)
            self._transport.close()
            return
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(_CONNECTION_WINDOW)
        self._flush()
        self._ping.start()

    def data_received(self, data: bytes) -> None:
        self._ping.received()
        try:
            for part in self._frames.feed(data):
                if isinstance(part, GoAway):
                    self._on_goaway(part)
                    continue
                for event in self._h2.receive_data(part):
                    self._on_event(event)
        except Exception as error:
            # The library may raise any exception that a malformed frame provokes.
            self._flush()
            self._fail(f"HTTP/2: {error}")
        else:
            self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self._accepts = False
        self._ping.stop()
        why = str(exc) if exc else "connection closed by the server"
        if not self.greeted.done():
            self.greeted.set_exception(ConnectionError(why))
        for stream in list(self._streams.values()):
            stream.lost(why)

    def _on_event(self, event: Event) -> None:
        if isinstance(event, RemoteSettingsChanged) and not self.greeted.done():
            self.greeted.set_result(True)
        if isinstance(event, PingAckReceived):
            self._ping.acknowledged()
            for one in self._streams.values():
                one.on_alive()
        if isinstance(event, (RemoteSettingsChanged, WindowUpdated)):
            for one in self._streams.values():
                one.wake()
        stream = self._streams.get(getattr(event, "stream_id", None) or 0)
        if stream is None:
            return
        if isinstance(event, ResponseReceived):
            stream.on_headers(cast("Any", event.headers))
        elif isinstance(event, DataReceived):
            stream.on_data(event.data or b"", event.flow_controlled_length or 0)
        elif isinstance(event, StreamEnded):
            stream.on_end()
        elif isinstance(event, StreamReset):
            refused = event.error_code == ErrorCodes.REFUSED_STREAM
            why = f"HTTP/2: stream reset with code {int(event.error_code or 0)}"
            stream.on_end(NotProcessed(why) if refused else ConnectionError(why))

    def _on_goaway(self, goaway: GoAway) -> None:
        """Let the streams end that the server still processes; it accepts no others."""
        log.info("API server ended a connection", extra=fields(code=goaway.code))
        self._accepts = False
        for stream in list(self._streams.values()):
            if stream.number > goaway.last_stream:
                stream.on_end(NotProcessed("HTTP/2: the server ends the connection"))
        if not self._streams:
            self.retire()

    async def _send_body(self, stream: Http2Stream, body: bytes) -> None:
        position, stream.sent = 0, False
        while position < len(body) and not stream.ended:
            window = self._h2.local_flow_control_window(stream.number)
            size = min(window, self._h2.max_outbound_frame_size)
            if size <= 0:
                await stream.writable()
                continue
            end = position + size
            self._h2.send_data(stream.number, body[position:end], end_stream=end >= len(body))
            self._flush()
            position = end
            stream.sent = end >= len(body)

    def _consumed(self, number: int, size: int) -> None:
        if size and not self.closed:
            self._h2.acknowledge_received_data(size, number)
            self._flush()

    def _finished(self, stream: Http2Stream) -> None:
        if self._streams.pop(stream.number, None) is None:
            return
        if not (stream.ended and stream.sent) and not self.closed:
            self._h2.reset_stream(stream.number, ErrorCodes.CANCEL)
            self._flush()
        if not self._accepts:
            self.retire()

    def _send_ping(self) -> None:
        self._h2.ping(b"extproc\0")
        self._flush()

    def _on_silence(self, seconds: float) -> None:
        self._fail(f"no response to an HTTP/2 PING for {seconds:g} s")

    def _flush(self) -> None:
        data = self._h2.data_to_send()
        if data and self._transport is not None and not self.closed:
            self._transport.write(data)

    def _fail(self, why: str) -> None:
        self._accepts = False
        self._ping.stop()
        for stream in list(self._streams.values()):
            stream.on_end(ConnectionError(why))
        if not self.greeted.done():
            self.greeted.set_exception(ConnectionError(why))
        if self._transport is not None:
            self._transport.abort()
