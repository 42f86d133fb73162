"""A client that sends frames to its own `Http2Connection`."""

from __future__ import annotations

from collections.abc import Iterable

from hyperframe.frame import DataFrame, Frame, WindowUpdateFrame

from extproc.edge.http2 import LIMITS, Event, Http2Connection, Limits, encode_headers
from tests.edge.http2 import wire

OK = encode_headers([(b":status", b"200"), (b"content-type", b"application/grpc")])
DONE = encode_headers([(b"grpc-status", b"0")])


class Http2Client:
    """A client that sends raw frames and parses the frames that it receives."""

    def __init__(
        self, limits: Limits = LIMITS, settings: Iterable[tuple[int, int]] = (), greet: bool = True
    ) -> None:
        self.connection = Http2Connection(limits)
        self.now = 0.0
        if greet:
            self.send(wire.PREFACE, wire.settings(settings), wire.SETTINGS_ACK)
            # The first block without a table must say so.
            self.send(wire.frame(wire.HEADERS, 5, 1, b"\x20" + wire.block()))
            self.connection.sender.end(1, DONE)
            self.connection.take()

    def send(self, *frames: bytes) -> list[Event]:
        return self.connection.receive(b"".join(frames), self.now)

    def received(self) -> list[Frame]:
        return wire.parsed(self.connection.take())

    def open(self, *streams: int) -> None:
        """Open streams with a request that has not ended and with response headers."""
        for stream in streams:
            self.send(wire.headers(stream))
            self.connection.sender.start_response(stream, OK)
        self.connection.take()

    def fault_code(self) -> int:
        """Return the code of the GOAWAY that ended the connection."""
        heard = self.received()
        ((_, code),) = wire.faults(heard)
        assert heard[-1].type == wire.GOAWAY
        assert self.connection.closed
        assert self.connection.streams.open == {}
        assert self.send(wire.ping()) == []
        assert self.received() == []
        return code


def data_of(found: Iterable[Frame], stream: int) -> bytes:
    return b"".join(f.data for f in found if isinstance(f, DataFrame) and f.stream_id == stream)


def updates_of(found: Iterable[Frame]) -> list[tuple[int, int]]:
    return [(f.stream_id, f.window_increment) for f in found if isinstance(f, WindowUpdateFrame)]
