"""A gRPC client, made with the h2 library, and the server, without a socket."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import h2.config
import h2.connection
import h2.events
import h2.settings

from extproc.edge.grpc.calls import Method
from extproc.edge.grpc.connection import GrpcConnection
from extproc.edge.grpc.messages import Messages, Status, framed

INITIAL_WINDOW = h2.settings.SettingCodes.INITIAL_WINDOW_SIZE


@dataclass
class CallResult:
    """The response to a call, as far as the client has received it."""

    headers: dict[str, str] = field(default_factory=dict)
    trailers: dict[str, str] = field(default_factory=dict)
    messages: list[bytes] = field(default_factory=list)
    ended: bool = False
    reset: int | None = None

    @property
    def status(self) -> Status:
        """The status with which the call ended."""
        assert self.ended
        return Status(int((self.trailers or self.headers)["grpc-status"]))


def _texts(headers: Iterable[tuple[Any, Any]]) -> dict[str, str]:
    return {str(name): str(value) for name, value in headers}


class GrpcClient:
    """A client that is connected to a server of its own."""

    def __init__(
        self, methods: Mapping[bytes, Method], *, window: int = 65_535, reads: bool = True
    ) -> None:
        self.server = GrpcConnection(methods, self.flush)
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        self.h2.local_settings = h2.settings.Settings(initial_values={INITIAL_WINDOW: window})
        self.h2.initiate_connection()
        self.results: dict[int, CallResult] = {}
        self._messages: dict[int, Messages] = {}
        self._reads = reads
        self.flush()

    def call(self, path: str, *, content_type: str = "application/grpc+proto") -> int:
        """Open a stream and return its number."""
        stream: int = self.h2.get_next_available_stream_id()
        pairs = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "sidecar"}
        self.h2.send_headers(stream, list({**pairs, "content-type": content_type}.items()))
        self.results[stream] = CallResult()
        self._messages[stream] = Messages()
        self.flush()
        return stream

    def send(self, stream: int, message: bytes, *, last: bool = False) -> CallResult:
        """Send one message as far as the windows allow. Return the response so far."""
        self.h2.send_data(stream, framed(message), end_stream=last)
        self.flush()
        return self.results[stream]

    def flush(self) -> None:
        """Pass bytes between both sides until neither has more."""
        while True:
            ours, theirs = self.h2.data_to_send(), self.server.take()
            if not ours and not theirs:
                return
            if theirs:
                for event in self.h2.receive_data(theirs):
                    self._handle(event)
            if ours:
                self.server.receive(ours, 0.0)

    def _handle(self, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.ResponseReceived):
            self.results[event.stream_id].headers = _texts(event.headers)
        elif isinstance(event, h2.events.TrailersReceived):
            self.results[event.stream_id].trailers = _texts(event.headers)
        elif isinstance(event, h2.events.DataReceived):
            found = self._messages[event.stream_id].feed(event.data)
            self.results[event.stream_id].messages += found
            if self._reads:
                self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, h2.events.StreamEnded):
            self.results[event.stream_id].ended = True
        elif isinstance(event, h2.events.StreamReset):
            self.results[event.stream_id].reset = event.error_code
