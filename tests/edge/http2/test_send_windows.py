"""Flow control of what we send, and SETTINGS of the client."""

from __future__ import annotations

import pytest
from hyperframe.frame import DataFrame

from extproc.edge.http2 import Limits, Reset
from tests.edge.http2 import wire
from tests.edge.http2.client import DONE, Http2Client, data_of

INITIAL_WINDOW = 4
SMALL = Limits(stream_window=100_000, connection_window=200_000)


class TestSending:
    def test_waits_for_the_streams_window(self) -> None:
        client = Http2Client(settings=[(INITIAL_WINDOW, 5)])
        client.open(3)
        client.connection.sender.send(3, b"hello world")
        assert data_of(client.received(), 3) == b"hello"
        assert client.connection.sender.queued(3) == 6
        client.send(wire.window_update(3, 4))
        assert data_of(client.received(), 3) == b" wor"
        client.send(wire.window_update(3, 4))
        assert data_of(client.received(), 3) == b"ld"
        assert client.connection.sender.queued(3) == 0

    def test_waits_for_the_connections_window(self) -> None:
        client = Http2Client()
        client.open(3)
        client.connection.sender.send(3, bytes(65_535))
        assert len(data_of(client.received(), 3)) == 65_535
        client.connection.sender.send(3, b"more")
        client.send(wire.window_update(3, 4))
        assert client.received() == []
        client.send(wire.window_update(0, 4))
        assert data_of(client.received(), 3) == b"more"

    def test_stays_in_order_after_queued_data(self) -> None:
        client = Http2Client(settings=[(INITIAL_WINDOW, 0)])
        client.open(3)
        client.connection.sender.send(3, b"one")
        client.connection.sender.send(3, b"two")
        client.connection.sender.end(3, DONE)
        assert client.connection.sender.queued(3) == 6
        assert client.received() == []
        client.send(wire.window_update(3, 10))
        *found, trailers, _ = client.received()
        assert data_of(found, 3) == b"onetwo"
        assert "END_STREAM" in trailers.flags
        assert client.connection.streams.open == {}

    def test_continues_when_the_initial_window_grows(self) -> None:
        client = Http2Client(settings=[(INITIAL_WINDOW, 2)])
        client.open(3, 5)
        client.connection.sender.send(3, b"abc")
        client.connection.sender.send(5, b"def")
        client.received()
        client.send(wire.settings([(INITIAL_WINDOW, 9)]))
        found = client.received()
        assert (data_of(found, 3), data_of(found, 5)) == (b"c", b"f")

    def test_follows_the_acknowledgement_of_the_larger_window(self) -> None:
        client = Http2Client(settings=[(INITIAL_WINDOW, 0)])
        client.open(3)
        client.connection.sender.send(3, b"abc")
        client.send(wire.settings([(INITIAL_WINDOW, 9)]))
        acknowledgement, data = client.received()
        assert acknowledgement.type == wire.SETTINGS
        assert data_of([data], 3) == b"abc"

    def test_waits_until_a_negative_window_is_open_again(self) -> None:
        client = Http2Client(settings=[(INITIAL_WINDOW, 10)])
        client.open(3)
        client.connection.sender.send(3, b"12345678")
        client.send(wire.settings([(INITIAL_WINDOW, 3)]))
        client.connection.sender.send(3, b"x")
        client.received()
        client.send(wire.window_update(3, 5))
        assert client.received() == []
        client.send(wire.window_update(3, 1))
        assert data_of(client.received(), 3) == b"x"

    def test_leaves_the_line_when_the_streams_window_shrinks(self) -> None:
        client = Http2Client()
        client.open(3, 5)
        client.connection.sender.send(3, bytes(65_535))
        client.connection.sender.send(5, b"hello")
        client.received()
        client.send(wire.settings([(INITIAL_WINDOW, 0)]), wire.window_update(0, 100))
        assert data_of(client.received(), 5) == b""
        client.send(wire.window_update(5, 5))
        assert data_of(client.received(), 5) == b"hello"

    def test_streams_take_turns_when_the_connections_window_opens(self) -> None:
        client = Http2Client(settings=[(INITIAL_WINDOW, 1_000_000)])
        client.open(3, 5, 7, 9)
        client.connection.sender.send(3, bytes(65_535))
        for stream in (5, 7, 9):
            client.connection.sender.send(stream, bytes(40_000))
        client.received()
        client.send(wire.window_update(0, 4 * 16_384))
        client.send(wire.window_update(0, 4 * 16_384))
        turns = [frame.stream_id for frame in client.received() if isinstance(frame, DataFrame)]
        assert turns == [5, 7, 9, 5, 7, 9, 5, 7, 9]

    def test_streams_without_data_are_not_in_the_line(self) -> None:
        client = Http2Client()
        client.open(*range(3, 2_003, 2))
        client.connection.sender.send(3, bytes(65_536))
        assert list(client.connection.streams.waiting) == []  # Its own window is shut as well.
        client.send(wire.window_update(3, 1))
        assert list(client.connection.streams.waiting) == [3]

    def test_reset_stream_leaves_the_line(self) -> None:
        client = Http2Client(settings=[(INITIAL_WINDOW, 1_000_000)])
        client.open(3, 5)
        client.connection.sender.send(3, bytes(65_535))
        for stream in range(7, 1_007, 2):
            client.open(stream)
            client.connection.sender.send(stream, b"x")
            client.send(wire.rst_stream(stream))
        assert len(client.connection.streams.waiting) == 0


class TestWindowUpdate:
    def test_of_zero_bytes_is_an_error(self) -> None:
        client = Http2Client()
        client.open(3)
        assert client.send(wire.window_update(3, 0)) == [Reset(3, wire.PROTOCOL_ERROR)]
        client.received()
        client.send(wire.window_update(0, 0))
        assert client.fault_code() == wire.PROTOCOL_ERROR

    def test_beyond_the_largest_window_is_an_error(self) -> None:
        client = Http2Client()
        client.open(3)
        largest = 2**31 - 1 - 65_535
        assert client.send(wire.window_update(0, largest), wire.window_update(3, largest)) == []
        assert client.send(wire.window_update(3, 1)) == [Reset(3, wire.FLOW_CONTROL_ERROR)]
        client.received()
        client.send(wire.window_update(0, 1))
        assert client.fault_code() == wire.FLOW_CONTROL_ERROR


class TestSettings:
    @pytest.mark.parametrize(
        ("pair", "code"),
        [
            ((INITIAL_WINDOW, 2**31), wire.FLOW_CONTROL_ERROR),
            ((2, 2), wire.PROTOCOL_ERROR),
            ((5, 16_383), wire.PROTOCOL_ERROR),
            ((5, 2**24), wire.PROTOCOL_ERROR),
        ],
    )
    def test_wrong_values_end_the_connection(self, pair: tuple[int, int], code: int) -> None:
        client = Http2Client()
        client.send(wire.settings([pair]))
        assert client.fault_code() == code

    def test_are_acknowledged_and_unknown_ones_ignored(self) -> None:
        client = Http2Client()
        client.send(wire.settings([(1, 0), (2, 0), (3, 9), (6, 9), (0xFFFF, 7)]), wire.settings())
        assert [(f.type, set(f.flags)) for f in client.received()] == [(wire.SETTINGS, {"ACK"})] * 2

    def test_too_large_window_of_a_stream_ends_the_connection(self) -> None:
        client = Http2Client()
        client.open(3)
        client.send(wire.window_update(3, 2**31 - 1 - 65_535))
        client.send(wire.settings([(INITIAL_WINDOW, 65_536)]))
        assert client.fault_code() == wire.FLOW_CONTROL_ERROR

    def test_last_value_in_a_frame_counts(self) -> None:
        client = Http2Client()
        client.send(wire.settings([(INITIAL_WINDOW, 0), (INITIAL_WINDOW, 3)]))
        client.open(3)
        client.connection.sender.send(3, b"hello")
        assert data_of(client.received(), 3) == b"hel"
