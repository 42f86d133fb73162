"""The h2 library ends the connection at the same frames as we do.

These differences are on purpose:

- h2 ends the connection for a malformed request or malformed trailers, and for a
  WINDOW_UPDATE of 0 bytes on a stream. The RFC demands a stream error, which we send, or
  nothing if the stream is closed.
- h2 ignores an RST_STREAM of an idle stream. The RFC demands the end of the connection.
- h2 remembers how each stream has ended, and resets the stream again for late HEADERS where it
  was broken off. We do not remember streams that the peer broke off itself.
- Nothing is compared of what h2 does not count (our budgets), of what we do not look at
  (`content-length`, and a stream that depends on itself), and of requests without an
  authority, which the RFC allows.
"""

from __future__ import annotations

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.exceptions import ProtocolError
from hypothesis import given
from hypothesis import strategies as st

from extproc.edge.http2 import Http2Connection, Limits
from tests.core.builders import thorough
from tests.edge.http2 import wire
from tests.edge.http2.strategies import frames_of_streams, frames_of_the_connection

LIMITS = Limits(stream_window=65_535, connection_window=10**6)
BEGINNING = wire.PREFACE + wire.settings()


class Oracle:
    """The h2 library as a server."""

    def __init__(self) -> None:
        self._server = H2Connection(H2Configuration(client_side=False))
        self._server.initiate_connection()
        self._server.increment_flow_control_window(10**6 - 65_535)
        self.closed = False
        self.receive(BEGINNING)

    def receive(self, data: bytes) -> None:
        try:
            self._server.receive_data(data)
        except ProtocolError:
            self.closed = True


def on_purpose(frame: bytes, connection: Http2Connection, output: bytes) -> bool:
    """Return True for a frame that we treat differently from h2 on purpose."""
    kind, stream = frame[3], int.from_bytes(frame[5:9], "big") & 2**31 - 1
    if kind == wire.WINDOW_UPDATE and stream and not any(frame[9:]):
        return True
    if not connection.closed:
        return (stream, wire.PROTOCOL_ERROR) in wire.resets(wire.parsed(output))
    if kind == wire.RST_STREAM:
        return stream != 0
    return kind == wire.HEADERS and stream % 2 == 1


crooked = st.builds(
    wire.frame,
    st.sampled_from([1, 3, 4, 5, 6, 8, 9, 11]),
    st.sampled_from([0, 4, 5]),
    st.sampled_from([0, 1, 3, 2]),
    st.binary(max_size=3),
)


@thorough
@given(
    st.lists(
        st.one_of(frames_of_streams, frames_of_streams, frames_of_the_connection, crooked),
        max_size=30,
    )
)
def test_same_frames_end_the_connection_as_in_h2(sequence: list[bytes]) -> None:
    oracle = Oracle()
    connection = Http2Connection(LIMITS)
    connection.receive(BEGINNING, 0)
    for frame in sequence:
        connection.take()
        connection.receive(frame, 0)
        oracle.receive(frame)
        if connection.closed != oracle.closed:
            assert on_purpose(frame, connection, connection.take()), frame
        if connection.closed or oracle.closed:
            return
