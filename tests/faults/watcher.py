"""A gRPC client that watches the sidecar's health, and records the states in order."""

from __future__ import annotations

import asyncio

import h2.config
import h2.connection
import h2.events
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from extproc.edge.grpc.messages import Messages, framed

GOAWAY = "GOAWAY"
_HEAD = 9
_GOAWAY_TYPE = 7
_WATCH = "/grpc.health.v1.Health/Watch"


class Watcher(asyncio.Protocol):
    """A watch of the sidecar's health. `events` has the names of the states, then GOAWAY."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.closed = asyncio.Event()
        self._http2 = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        self._messages = Messages()
        self._unread = b""

    @classmethod
    async def connect(cls, address: str) -> Watcher:
        """Watch the server at HOST:PORT, and return after its first state."""
        host, _, port = address.rpartition(":")
        _, watcher = await asyncio.get_running_loop().create_connection(cls, host, int(port))
        while not watcher.events:
            await asyncio.sleep(0.005)
        return watcher

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport
        headers = {":method": "POST", ":scheme": "http", ":path": _WATCH, ":authority": "sidecar"}
        self._http2.initiate_connection()
        self._http2.send_headers(1, [*headers.items(), ("content-type", "application/grpc")])
        self._http2.send_data(1, framed(HealthCheckRequest().SerializeToString()), end_stream=True)
        self._flush()

    def data_received(self, data: bytes) -> None:
        self._unread += data
        while len(self._unread) >= _HEAD and not self.closed.is_set():
            length = _HEAD + int.from_bytes(self._unread[:3], "big")
            if len(self._unread) < length:
                break
            self._receive(self._unread[:length])
            self._unread = self._unread[length:]
        self._flush()

    def _receive(self, frame: bytes) -> None:
        # h2 raises an error for data after a GOAWAY and drops the events of the same call,
        # so it receives one frame at a time.
        if frame[3] == _GOAWAY_TYPE:
            self.events.append(GOAWAY)
            self.closed.set()
            return
        for event in self._http2.receive_data(frame):
            if isinstance(event, h2.events.DataReceived):
                for message in self._messages.feed(event.data or b""):
                    status = HealthCheckResponse.FromString(message).status
                    self.events.append(HealthCheckResponse.ServingStatus.Name(status))

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set()

    def close(self) -> None:
        """Close the connection."""
        self._transport.close()

    def _flush(self) -> None:
        if data := self._http2.data_to_send():
            self._transport.write(data)
