"""The states of a stream, from its request to its end."""

from __future__ import annotations

import pytest
from hyperframe.frame import DataFrame, HeadersFrame, RstStreamFrame

from extproc.edge.http2 import Data, Ended, Limits, Opened, Reset
from tests.edge.http2 import wire
from tests.edge.http2.client import DONE, OK, Http2Client, data_of, updates_of


class TestRequest:
    def test_is_reported_part_by_part(self) -> None:
        client = Http2Client()
        events = client.send(wire.headers(3), wire.data(3, b"one"), wire.data(3, b"two", end=True))
        opened, *rest = events
        assert isinstance(opened, Opened)
        assert opened.headers == dict(wire.REQUEST)
        assert rest == [Data(3, b"one"), Data(3, b"two"), Ended(3)]

    def test_may_be_headers_only(self) -> None:
        opened, ended = Http2Client().send(wire.headers(3, end=True))
        assert isinstance(opened, Opened)
        assert ended == Ended(3)

    def test_may_end_with_an_empty_frame(self) -> None:
        client = Http2Client()
        client.open(3)
        assert client.send(wire.data(3, end=True)) == [Ended(3)]

    def test_may_end_with_trailers(self) -> None:
        client = Http2Client()
        client.open(3)
        assert client.send(wire.headers(3, [(b"x-checksum", b"1")], end=True)) == [Ended(3)]

    def test_may_be_padded(self) -> None:
        client = Http2Client()
        padded = bytes([7]) + bytes(5) + wire.block() + bytes(7)
        client.send(wire.frame(wire.HEADERS, 0x2C, 3, padded))
        assert client.send(wire.padded_data(3, b"abc", 5)) == [Data(3, b"abc")]
        assert client.send(wire.padded_data(3, b"", 5, end=True)) == [Ended(3)]

    def test_may_have_its_headers_in_several_frames(self) -> None:
        client = Http2Client()
        whole = wire.block()
        events = client.send(
            wire.frame(wire.HEADERS, wire.END_STREAM, 3, whole[:5]),
            wire.frame(wire.CONTINUATION, 0, 3, whole[5:9]),
            wire.frame(wire.CONTINUATION, wire.END_HEADERS, 3, whole[9:]),
        )
        assert [type(event) for event in events] == [Opened, Ended]

    @pytest.mark.parametrize(
        "between",
        [
            wire.data(3, b"x"),
            wire.ping(),
            wire.headers(5),
            wire.frame(0xFF, 0, 0),
            wire.frame(wire.CONTINUATION, wire.END_HEADERS, 5),
        ],
    )
    def test_may_not_have_other_frames_between_its_header_frames(self, between: bytes) -> None:
        client = Http2Client()
        assert client.send(wire.frame(wire.HEADERS, 0, 3, wire.block()), between) == []
        assert client.fault_code() == wire.PROTOCOL_ERROR


class TestResponse:
    def test_has_headers_data_and_trailers(self) -> None:
        client = Http2Client()
        client.send(wire.headers(3, end=True))
        client.connection.sender.start_response(3, OK)
        client.connection.sender.send(3, b"one")
        client.connection.sender.send(3, b"")
        client.connection.sender.send(3, b"two")
        client.connection.sender.end(3, DONE)
        first, one, two, last = client.received()
        assert isinstance(first, HeadersFrame)
        assert first.data == OK
        assert set(first.flags) == {"END_HEADERS"}
        assert isinstance(one, DataFrame)
        assert data_of([one, two], 3) == b"onetwo"
        assert isinstance(last, HeadersFrame)
        assert set(last.flags) == {"END_HEADERS", "END_STREAM"}
        assert client.connection.streams.open == {}

    def test_may_be_trailers_only(self) -> None:
        client = Http2Client()
        client.send(wire.headers(3, end=True))
        client.connection.sender.end(3, DONE)
        (only,) = client.received()
        assert set(only.flags) == {"END_HEADERS", "END_STREAM"}

    def test_has_frames_no_larger_than_the_client_accepts(self) -> None:
        client = Http2Client(settings=[(5, 20_000)])
        client.open(3)
        client.connection.sender.send(3, bytes(50_000))
        assert [len(f.data) for f in client.received() if isinstance(f, DataFrame)] == [
            20_000,
            20_000,
            10_000,
        ]

    def test_has_frames_no_larger_than_a_fair_turn(self) -> None:
        client = Http2Client(settings=[(5, 2**24 - 1), (4, 10**6)])
        client.open(3)
        client.send(wire.window_update(0, 10**6))
        client.connection.sender.send(3, bytes(100_000))
        sizes = [len(f.data) for f in client.received() if isinstance(f, DataFrame)]
        assert sizes == [65_536, 100_000 - 65_536]

    def test_has_large_headers_in_several_frames(self) -> None:
        client = Http2Client()
        client.send(wire.headers(3, end=True))
        client.connection.sender.start_response(3, bytes(40_000))
        found = client.received()
        assert [type(f).__name__ for f in found] == [
            "HeadersFrame",
            "ContinuationFrame",
            "ContinuationFrame",
        ]
        assert [set(f.flags) for f in found] == [set(), set(), {"END_HEADERS"}]
        assert b"".join(f.data for f in found if hasattr(f, "data")) == bytes(40_000)

    def test_that_ends_before_the_request_resets_the_stream(self) -> None:
        client = Http2Client()
        client.open(3)
        client.connection.sender.end(3, DONE)
        trailers, reset = client.received()
        assert isinstance(trailers, HeadersFrame)
        assert isinstance(reset, RstStreamFrame)
        assert reset.error_code == wire.NO_ERROR

    def test_of_a_closed_stream_is_dropped(self) -> None:
        client = Http2Client()
        client.open(3)
        client.send(wire.rst_stream(3))
        client.connection.sender.start_response(3, OK)
        client.connection.sender.send(3, b"x")
        client.connection.sender.end(3, DONE)
        client.connection.sender.reset(3, wire.CANCEL)
        client.connection.windows.consumed(3, 100)
        assert client.connection.take() == b""

    def test_accepts_no_data_after_its_end(self) -> None:
        client = Http2Client()
        client.open(3)
        client.connection.sender.send(3, bytes(70_000))
        client.connection.sender.end(3, DONE)
        client.received()
        client.connection.sender.start_response(3, OK)
        client.connection.sender.send(3, b"x")
        client.connection.sender.end(3, DONE)
        client.connection.windows.consumed(3, 100)
        assert client.connection.take() == b""
        assert client.connection.sender.queued(3) == 70_000 - 65_535


class TestReset:
    def test_by_the_client_is_reported_once_with_its_code(self) -> None:
        client = Http2Client()
        client.open(3)
        assert client.send(wire.rst_stream(3, 5), wire.rst_stream(3, 5)) == [Reset(3, 5)]
        assert client.received() == []
        assert client.connection.streams.open == {}

    def test_by_us_drops_queued_data(self) -> None:
        client = Http2Client()
        client.open(3)
        client.connection.sender.send(3, bytes(70_000))
        client.received()
        client.connection.sender.reset(3, wire.CANCEL)
        client.send(wire.window_update(0, 100_000))
        assert wire.resets(found := client.received()) == [(3, wire.CANCEL)]
        assert data_of(found, 3) == b""
        assert client.connection.sender.queued(3) == 0


class TestStreamThatWeHaveEnded:
    """Frames that were on their way are no error, and cause no events."""

    @pytest.mark.parametrize(
        "late",
        [
            wire.data(3, b"late", end=True),
            wire.headers(3, [(b"x", b"y")], end=True),
            wire.rst_stream(3),
            wire.window_update(3, 5),
        ],
    )
    @pytest.mark.parametrize("how", ["end", "reset", "end, with data still queued"])
    def test_ignores_frames_that_were_on_their_way(self, how: str, late: bytes) -> None:
        client = Http2Client()
        client.open(3)
        if "queued" in how:
            client.connection.sender.send(3, bytes(70_000))
        if how == "reset":
            client.connection.sender.reset(3, wire.CANCEL)
        else:
            client.connection.sender.end(3, DONE)
        client.received()
        assert client.send(wire.data(3, b"late"), late) == []
        assert not client.received() or late == wire.window_update(3, 5)
        assert not client.connection.closed

    def test_returns_the_connections_window_for_ignored_data(self) -> None:
        client = Http2Client(Limits(stream_window=100_000, connection_window=100_000))
        client.open(3)
        client.send(wire.data(3, bytes(16_000)))
        client.connection.sender.reset(3, wire.CANCEL)
        client.send(*[wire.data(3, bytes(16_000))] * 3)
        assert updates_of(client.received()) == [(0, 64_000)]

    def test_is_forgotten_later_and_then_its_frames_are_stream_errors(self) -> None:
        client = Http2Client(Limits(remembered=2))
        client.open(3, 5, 7)
        for stream in (3, 5, 7):
            client.connection.sender.reset(stream, wire.CANCEL)
        client.received()
        client.send(*[wire.data(stream, b"late") for stream in (3, 5, 7)])
        assert wire.resets(client.received()) == [(3, wire.STREAM_CLOSED)]


class TestStreamThatTheClientHasEnded:
    @pytest.mark.parametrize("more", [wire.data(3, b"x"), wire.headers(3, end=True)])
    def test_accepts_no_more_frames(self, more: bytes) -> None:
        client = Http2Client()
        assert client.send(wire.headers(3, end=True), more)[1:] == [
            Ended(3),
            Reset(3, wire.STREAM_CLOSED),
        ]
        assert wire.resets(client.received()) == [(3, wire.STREAM_CLOSED)]

    def test_accepts_no_more_frames_after_our_end(self) -> None:
        client = Http2Client()
        assert client.send(wire.data(1, b"x")) == []
        assert wire.resets(client.received()) == [(1, wire.STREAM_CLOSED)]

    def test_may_be_reset(self) -> None:
        client = Http2Client()
        events = client.send(wire.headers(3, end=True), wire.rst_stream(3))
        assert events[1:] == [Ended(3), Reset(3, wire.CANCEL)]


class TestTrailers:
    @pytest.mark.parametrize(
        "bad",
        [
            pytest.param(wire.headers(3, [(b"x", b"y")]), id="without the end"),
            pytest.param(wire.headers(3, [(b":path", b"/")], end=True), id="with a pseudo-header"),
            pytest.param(wire.headers(3, [(b"X", b"y")], end=True), id="in upper case"),
        ],
    )
    def test_malformed_ones_reset_the_stream(self, bad: bytes) -> None:
        client = Http2Client()
        client.open(3)
        assert client.send(bad) == [Reset(3, wire.PROTOCOL_ERROR)]
        assert wire.resets(client.received()) == [(3, wire.PROTOCOL_ERROR)]


class TestTooManyStreams:
    def test_are_refused_and_their_bodies_ignored(self) -> None:
        client = Http2Client(Limits(concurrent_streams=2))
        events = client.send(
            wire.headers(3), wire.headers(5), wire.headers(7), wire.data(7, b"x", end=True)
        )
        assert [type(event) for event in events] == [Opened, Opened]
        assert wire.resets(client.received()) == [(7, wire.REFUSED_STREAM)]
        client.connection.sender.reset(3, wire.CANCEL)
        assert isinstance(client.send(wire.headers(9))[0], Opened)


class TestStreamNumbers:
    def test_may_be_skipped_but_never_decrease(self) -> None:
        client = Http2Client()
        client.send(wire.headers(9))
        assert client.send(wire.headers(7)) == [Reset(9, wire.PROTOCOL_ERROR)]
        assert client.fault_code() == wire.PROTOCOL_ERROR
