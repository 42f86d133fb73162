"""Flow control of what the client sends."""

from __future__ import annotations

import pytest

from extproc.edge.http2 import Data, Limits, Reset
from tests.edge.http2 import wire
from tests.edge.http2.client import DONE, Http2Client, updates_of

INITIAL_WINDOW = 4
SMALL = Limits(stream_window=100_000, connection_window=200_000)


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


def test_data_before_our_settings_are_acknowledged_may_fill_the_default_window() -> None:
    client = Http2Client(Limits(stream_window=65_535), greet=False)
    client.send(wire.PREFACE, wire.settings(), wire.headers(1))
    parts = [bytes(16_384)] * 3 + [bytes(16_383)]
    assert client.send(*[wire.data(1, part) for part in parts]) == [Data(1, p) for p in parts]
