"""Flow control in both directions, and SETTINGS."""

from __future__ import annotations

import pytest
from hyperframe.frame import DataFrame

from extproc.edge.http2 import Data, Limits, Reset
from tests.edge.http2 import wire
from tests.edge.http2.client import DONE, Http2Client, data_of, updates_of

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


class TestReceiveWindow:
    def test_opens_again_when_half_is_consumed(self) -> None:
        client = Http2Client(SMALL)
        client.open(3)
        for _ in range(5):
            client.send(wire.data(3, bytes(10_000)))
            assert client.received() == []
        for _ in range(4):
            client.connection.windows.consumed(3, 10_000)
            assert client.received() == []
        client.connection.windows.consumed(3, 10_000)
        assert updates_of(client.received()) == [(3, 50_000)]

    def test_of_the_connection_opens_again(self) -> None:
        client = Http2Client(SMALL)
        client.open(3, 5)
        for stream in (3, 5):
            client.send(*[wire.data(stream, bytes(10_000))] * 5)
            client.connection.windows.consumed(stream, 50_000)
        assert updates_of(client.received()) == [(3, 50_000), (5, 50_000), (0, 100_000)]

    def test_does_not_open_for_more_than_was_received(self) -> None:
        client = Http2Client(SMALL)
        client.open(3)
        client.connection.windows.consumed(3, 10**9)
        assert client.received() == []
        client.send(*[wire.data(3, bytes(10_000))] * 6)
        client.connection.windows.consumed(3, 10**9)
        assert updates_of(client.received()) == [(3, 60_000)]

    def test_does_not_open_on_a_stream_that_the_client_has_ended(self) -> None:
        client = Http2Client(SMALL)
        client.open(3)
        client.send(*[wire.data(3, bytes(16_000), end=i == 5) for i in range(6)])
        client.connection.windows.consumed(3, 96_000)
        assert client.received() == []

    def test_counts_padding_as_consumed(self) -> None:
        client = Http2Client(SMALL)
        client.open(3)
        for _ in range(250):
            client.send(wire.padded_data(3, b"", 199))
        assert updates_of(client.received()) == [(3, 50_000)]

    @pytest.mark.parametrize("how", ["the peer's reset", "our reset", "our end"])
    def test_data_of_a_closed_stream_counts_as_consumed(self, how: str) -> None:
        client = Http2Client(SMALL)
        for stream in (3, 5):
            client.open(stream)
            client.send(*[wire.data(stream, bytes(10_000))] * 5)
            client.received()
            if how == "the peer's reset":
                client.send(wire.rst_stream(stream))
            elif how == "our reset":
                client.connection.sender.reset(stream, wire.CANCEL)
            else:
                client.connection.sender.end(stream, DONE)
        assert updates_of(client.received()) == [(0, 100_000)]

    def test_data_of_an_ended_stream_is_held_only_while_its_response_waits(self) -> None:
        client = Http2Client(SMALL)
        client.open(3)
        client.send(*[wire.data(3, bytes(10_000))] * 4)
        client.connection.windows.consumed(3, 10_000)
        client.connection.sender.send(3, bytes(70_000))
        client.connection.sender.end(3, DONE)
        client.send(*[wire.data(3, bytes(10_000))] * 5)
        client.send(wire.window_update(0, 10_000), wire.window_update(3, 10_000))
        assert client.connection.streams.open == {}
        client.open(5)
        client.send(wire.data(5, bytes(10_000)))
        client.received()
        client.connection.sender.reset(5, wire.CANCEL)
        assert updates_of(client.received()) == [(0, 100_000)]

    def test_data_is_held_while_responses_wait_after_our_end(self) -> None:
        client = Http2Client(SMALL, settings=[(INITIAL_WINDOW, 0)])
        for stream in (3, 5):
            client.open(stream)
            client.send(*[wire.data(stream, bytes(10_000))] * 5)
            client.connection.sender.send(stream, bytes(50_000))
            client.connection.sender.end(stream, DONE)
        client.send(wire.padded_data(5, b"late", 100))
        client.received()
        assert client.connection.windows.connection.consumed == 105
        client.send(wire.window_update(3, 50_000), wire.window_update(5, 15_535))
        assert client.connection.windows.connection.consumed == 50_105

    def test_exceeding_the_streams_window_ends_the_connection(self) -> None:
        client = Http2Client(SMALL)
        client.open(3)
        client.send(*[wire.data(3, bytes(10_000))] * 10)
        assert not client.connection.closed
        assert client.send(wire.data(3, b"x")) == [Reset(3, wire.FLOW_CONTROL_ERROR)]
        assert client.fault_code() == wire.FLOW_CONTROL_ERROR

    def test_exceeding_the_connections_window_ends_the_connection(self) -> None:
        client = Http2Client(SMALL)
        client.open(3, 5, 7)
        for stream in (3, 5):
            client.send(*[wire.data(stream, bytes(10_000))] * 10)
        client.send(wire.data(7, b"x"))
        assert client.fault_code() == wire.FLOW_CONTROL_ERROR

    def test_closed_streams_count_for_the_connections_window(self) -> None:
        client = Http2Client(SMALL)
        client.open(3, 5, 7)
        for stream in (3, 5):
            client.send(*[wire.data(stream, bytes(10_000))] * 10)
        client.connection.sender.reset(7, wire.CANCEL)
        client.send(wire.data(7, b"x"))
        assert client.fault_code() == wire.FLOW_CONTROL_ERROR


class TestSetStreamWindow:
    def test_applies_to_open_streams_after_the_acknowledgement(self) -> None:
        client = Http2Client(SMALL)
        client.open(3)
        client.connection.set_stream_window(30_000)
        (settings,) = client.received()
        assert settings.settings == {INITIAL_WINDOW: 30_000}  # type: ignore[attr-defined]
        client.send(*[wire.data(3, bytes(10_000))] * 5)
        assert not client.connection.closed
        client.send(wire.SETTINGS_ACK)
        assert not client.connection.closed
        client.send(wire.data(3, b"x"))
        assert client.fault_code() == wire.FLOW_CONTROL_ERROR

    def test_smaller_window_opens_again_to_its_size(self) -> None:
        client = Http2Client(SMALL)
        client.open(3)
        client.send(*[wire.data(3, bytes(10_000))] * 5)
        client.connection.set_stream_window(30_000)
        client.send(wire.SETTINGS_ACK)
        client.received()
        client.connection.windows.consumed(3, 50_000)
        assert (3, 50_000) in updates_of(client.received())
        client.send(*[wire.data(3, bytes(10_000))] * 3)
        assert not client.connection.closed
        client.send(wire.data(3, b"x"))
        assert client.fault_code() == wire.FLOW_CONTROL_ERROR

    def test_smaller_window_opens_for_data_consumed_before(self) -> None:
        client = Http2Client(SMALL)
        client.open(3)
        client.send(*[wire.data(3, bytes(10_000))] * 4)
        client.connection.windows.consumed(3, 40_000)
        client.connection.set_stream_window(30_000)
        client.received()
        client.send(wire.SETTINGS_ACK)
        assert updates_of(client.received()) == [(3, 40_000)]

    def test_applies_to_new_streams_and_can_be_reverted(self) -> None:
        client = Http2Client(SMALL)
        client.connection.set_stream_window(30_000)
        client.connection.set_stream_window(100_000)
        client.send(wire.SETTINGS_ACK)
        client.open(3)
        client.send(*[wire.data(3, bytes(10_000))] * 3)
        client.send(wire.SETTINGS_ACK)
        client.send(*[wire.data(3, bytes(10_000))] * 7)
        assert not client.connection.closed


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


def test_data_before_our_settings_are_acknowledged_may_fill_the_default_window() -> None:
    client = Http2Client(Limits(stream_window=65_535), greet=False)
    client.send(wire.PREFACE, wire.settings(), wire.headers(1))
    parts = [bytes(16_384)] * 3 + [bytes(16_383)]
    assert client.send(*[wire.data(1, part) for part in parts]) == [Data(1, p) for p in parts]
