"""The preface, the order of frames, faults, and PING."""

from __future__ import annotations

import pytest
from hyperframe.frame import PingFrame, SettingsFrame

from extproc.edge.http2 import Limits, Opened, Reset
from tests.edge.http2 import wire
from tests.edge.http2.client import DONE, Http2Client, updates_of
from tests.edge.http2.wire import frame


class TestPreface:
    def test_sends_settings_and_a_large_window_first(self) -> None:
        settings, update = Http2Client(greet=False).received()
        assert isinstance(settings, SettingsFrame)
        assert settings.settings == {1: 0, 3: 20_000, 4: 262_144, 5: 16_384, 6: 65_536}
        assert updates_of([update]) == [(0, 16_777_216 - 65_535)]

    @pytest.mark.parametrize("size", [1, 5, 100])
    def test_accepts_the_clients_preface_in_any_pieces(self, size: int) -> None:
        client = Http2Client(greet=False)
        whole = wire.PREFACE + wire.settings() + wire.headers(1)
        for at in range(0, len(whole), size):
            events = client.send(whole[at : at + size])
        assert isinstance(events[0], Opened)

    @pytest.mark.parametrize("nonsense", [b"GET / HTTP/1.1\r\n\r\n", b"P", b"PRJ", b"\x16\x03\x01"])
    def test_wrong_byte_ends_the_connection(self, nonsense: bytes) -> None:
        client = Http2Client(greet=False)
        client.send(nonsense)
        assert client.connection.closed == (nonsense != b"P")

    @pytest.mark.parametrize("first", [wire.ping(), wire.headers(1), wire.SETTINGS_ACK])
    def test_without_settings_ends_the_connection(self, first: bytes) -> None:
        client = Http2Client(greet=False)
        client.send(wire.PREFACE, first)
        assert client.fault_code() == wire.PROTOCOL_ERROR


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        pytest.param(wire.data(0, b"x"), wire.PROTOCOL_ERROR, id="DATA on stream 0"),
        pytest.param(wire.headers(0), wire.PROTOCOL_ERROR, id="HEADERS on stream 0"),
        pytest.param(wire.headers(4), wire.PROTOCOL_ERROR, id="even stream"),
        pytest.param(wire.headers(1), wire.PROTOCOL_ERROR, id="stream that is over"),
        pytest.param(wire.data(9), wire.PROTOCOL_ERROR, id="DATA of an idle stream"),
        pytest.param(wire.data(2), wire.PROTOCOL_ERROR, id="DATA of an even stream"),
        pytest.param(wire.rst_stream(9), wire.PROTOCOL_ERROR, id="RST_STREAM of an idle stream"),
        pytest.param(wire.rst_stream(0), wire.PROTOCOL_ERROR, id="RST_STREAM on stream 0"),
        pytest.param(
            wire.window_update(9, 1), wire.PROTOCOL_ERROR, id="WINDOW_UPDATE of an idle stream"
        ),
        pytest.param(frame(wire.PRIORITY, 0, 0, bytes(5)), wire.PROTOCOL_ERROR, id="PRIORITY on 0"),
        pytest.param(frame(wire.CONTINUATION, 4, 3), wire.PROTOCOL_ERROR, id="CONTINUATION alone"),
        pytest.param(frame(wire.PUSH_PROMISE, 4, 1, bytes(4)), wire.PROTOCOL_ERROR, id="push"),
        pytest.param(frame(wire.SETTINGS, 0, 3), wire.PROTOCOL_ERROR, id="SETTINGS of a stream"),
        pytest.param(frame(wire.PING, 0, 3, bytes(8)), wire.PROTOCOL_ERROR, id="PING of a stream"),
        pytest.param(frame(wire.GOAWAY, 0, 3, bytes(8)), wire.PROTOCOL_ERROR, id="GOAWAY of one"),
        pytest.param(
            b"\0\x40\x01" + bytes(6), wire.FRAME_SIZE_ERROR, id="too long, any part of it"
        ),
        pytest.param(frame(wire.PING, 0, 0, bytes(7)), wire.FRAME_SIZE_ERROR, id="short PING"),
        pytest.param(frame(wire.RST_STREAM, 0, 1, b""), wire.FRAME_SIZE_ERROR, id="RST_STREAM"),
        pytest.param(frame(wire.PRIORITY, 0, 1, b""), wire.FRAME_SIZE_ERROR, id="PRIORITY"),
        pytest.param(frame(wire.GOAWAY, 0, 0, bytes(7)), wire.FRAME_SIZE_ERROR, id="GOAWAY"),
        pytest.param(frame(wire.WINDOW_UPDATE, 0, 0, b""), wire.FRAME_SIZE_ERROR, id="update"),
        pytest.param(frame(wire.SETTINGS, 0, 0, bytes(5)), wire.FRAME_SIZE_ERROR, id="SETTINGS"),
        pytest.param(frame(wire.SETTINGS, 1, 0, bytes(6)), wire.FRAME_SIZE_ERROR, id="full ACK"),
        pytest.param(frame(wire.HEADERS, 0xC, 3), wire.FRAME_SIZE_ERROR, id="no padding's length"),
        pytest.param(frame(wire.HEADERS, 0x24, 3, bytes(4)), wire.FRAME_SIZE_ERROR, id="priority"),
        pytest.param(frame(wire.HEADERS, 0xC, 3, b"\3ab"), wire.PROTOCOL_ERROR, id="long padding"),
    ],
)
def test_misplaced_or_malformed_frame_ends_the_connection(bad: bytes, code: int) -> None:
    client = Http2Client()
    client.send(bad)
    assert client.fault_code() == code


class TestConnectionFault:
    def test_handles_earlier_frames_and_resets_every_open_stream(self) -> None:
        client = Http2Client()
        client.open(3, 5)
        client.connection.sender.end(3, DONE)
        events = client.send(wire.headers(7), wire.data(0), wire.headers(9))
        assert [type(event) for event in events] == [Opened, Reset, Reset]
        assert events[1:] == [Reset(5, wire.PROTOCOL_ERROR), Reset(7, wire.PROTOCOL_ERROR)]
        assert wire.faults(client.received()) == [(7, wire.PROTOCOL_ERROR)]

    def test_makes_later_calls_do_nothing(self) -> None:
        client = Http2Client()
        client.open(3)
        client.send(wire.data(0))
        client.received()
        connection = client.connection
        connection.sender.start_response(3, DONE)
        connection.sender.send(3, b"x")
        connection.sender.end(3, DONE)
        connection.sender.reset(3, wire.CANCEL)
        connection.windows.consumed(3, 1)
        connection.go_away()
        assert connection.sender.queued(3) == 0
        assert connection.take() == b""
        assert connection.lost() == []


class TestPing:
    def test_is_acknowledged_with_its_payload(self) -> None:
        client = Http2Client()
        client.send(wire.ping(b"abcdefgh"))
        (answer,) = client.received()
        assert isinstance(answer, PingFrame)
        assert (answer.opaque_data, set(answer.flags)) == (b"abcdefgh", {"ACK"})

    def test_unexpected_acknowledgement_is_ignored(self) -> None:
        client = Http2Client()
        assert client.send(wire.ping(b"abcdefgh", ack=True)) == []
        assert client.received() == []


class TestUnknown:
    @pytest.mark.parametrize("kind", [0xA, 0x10, 0xFF])
    @pytest.mark.parametrize("stream", [0, 1, 99])
    def test_is_ignored(self, kind: int, stream: int) -> None:
        client = Http2Client()
        assert client.send(frame(kind, 0xFF, stream, b"anything")) == []
        assert client.received() == []

    def test_flags_and_the_reserved_bit_are_ignored(self) -> None:
        client = Http2Client()
        events = client.send(frame(wire.HEADERS, 0xD6 & ~wire.PADDED, 0x8000_0003, wire.block()))
        assert [event.stream for event in events if isinstance(event, Opened)] == [3]


class TestLostTransport:
    def test_resets_open_streams(self) -> None:
        client = Http2Client()
        client.open(3, 5)
        client.connection.sender.send(3, bytes(100_000))
        client.connection.sender.end(3, DONE)
        assert client.connection.lost() == [Reset(5, wire.CANCEL)]
        assert client.connection.closed
        assert client.connection.lost() == []


class TestLimits:
    @pytest.mark.parametrize(
        "wrong",
        [
            {"stream_window": 65_534},
            {"connection_window": 2**31},
            {"frame_size": 16_383},
            {"frame_size": 2**24},
        ],
    )
    def test_refuse_values_that_the_protocol_forbids(self, wrong: dict[str, int]) -> None:
        with pytest.raises(ValueError, match="from"):
            Limits(**wrong)
