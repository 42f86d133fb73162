"""GOAWAY of both sides."""

from __future__ import annotations

from hyperframe.frame import GoAwayFrame, PingFrame

from extproc.edge.http2 import Data, Opened
from tests.edge.http2 import wire
from tests.edge.http2.client import DONE, Http2Client

ANY = 2**31 - 1


class TestGoAway:
    def test_is_announced_first_and_concluded_after_the_peers_acknowledgement(self) -> None:
        client = Http2Client()
        client.open(3)
        client.connection.go_away()
        announced, question = client.received()
        assert wire.faults([announced]) == [(ANY, wire.NO_ERROR)]
        assert isinstance(question, PingFrame)
        assert isinstance(client.send(wire.headers(5))[0], Opened)
        assert client.send(wire.ping(question.opaque_data, ack=True)) == []
        assert wire.faults(client.received()) == [(5, wire.NO_ERROR)]

    def test_is_concluded_once_by_a_second_call(self) -> None:
        client = Http2Client()
        for _ in range(3):
            client.connection.go_away()
        found = client.received()
        assert wire.faults(found) == [(ANY, wire.NO_ERROR), (1, wire.NO_ERROR)]
        (question,) = [frame for frame in found if isinstance(frame, PingFrame)]
        client.send(wire.ping(question.opaque_data, ack=True))
        assert client.received() == []

    def test_refuses_later_streams_and_serves_open_ones(self) -> None:
        client = Http2Client()
        client.open(3)
        client.connection.go_away()
        client.connection.go_away()
        client.received()
        assert client.send(wire.headers(5), wire.data(3, b"x")) == [Data(3, b"x")]
        assert wire.resets(client.received()) == [(5, wire.REFUSED_STREAM)]

    def test_is_drained_when_no_stream_is_left(self) -> None:
        client = Http2Client()
        client.open(3)
        client.connection.go_away()
        assert not client.connection.drained
        client.connection.sender.end(3, DONE)
        assert not client.connection.drained  # Others may be under way.
        client.connection.go_away()
        assert client.connection.drained
        assert not client.connection.closed

    def test_never_names_a_later_stream_than_before(self) -> None:
        client = Http2Client()
        client.connection.go_away()
        client.connection.go_away()
        client.send(wire.headers(5))
        client.received()
        client.send(wire.data(0))
        assert wire.faults(client.received()) == [(1, wire.PROTOCOL_ERROR)]


class TestClientGoAway:
    def test_keeps_open_streams_and_refuses_new_ones(self) -> None:
        client = Http2Client()
        client.open(3)
        client.send(wire.goaway())
        assert not client.connection.closed
        assert client.send(wire.data(3, b"x"), wire.headers(5)) == [Data(3, b"x")]
        assert wire.resets(client.received()) == [(5, wire.REFUSED_STREAM)]
        client.connection.sender.end(3, DONE)
        assert client.connection.closed
        assert len(client.received()) == 2

    def test_closes_the_connection_when_no_stream_is_left(self) -> None:
        client = Http2Client()
        client.send(wire.goaway())
        assert client.connection.closed
        assert not [f for f in client.received() if isinstance(f, GoAwayFrame)]
