"""Leaving, on either side."""

from __future__ import annotations

from hyperframe.frame import GoAwayFrame, PingFrame

from extproc.edge.http2 import Data, Opened
from tests.edge.http2 import wire
from tests.edge.http2.peer import DONE, Peer

ANY = 2**31 - 1


class TestGoingAway:
    def test_is_announced_first_and_concluded_when_the_peer_has_heard(self) -> None:
        peer = Peer()
        peer.opens(3)
        peer.connection.go_away()
        announced, question = peer.heard()
        assert wire.faults([announced]) == [(ANY, wire.NO_ERROR)]
        assert isinstance(question, PingFrame)
        assert isinstance(peer.say(wire.headers(5))[0], Opened)
        assert peer.say(wire.ping(question.opaque_data, ack=True)) == []
        assert wire.faults(peer.heard()) == [(5, wire.NO_ERROR)]

    def test_is_concluded_by_a_second_call_too_and_once_only(self) -> None:
        peer = Peer()
        for _ in range(3):
            peer.connection.go_away()
        found = peer.heard()
        assert wire.faults(found) == [(ANY, wire.NO_ERROR), (1, wire.NO_ERROR)]
        (question,) = [frame for frame in found if isinstance(frame, PingFrame)]
        peer.say(wire.ping(question.opaque_data, ack=True))
        assert peer.heard() == []

    def test_refuses_later_streams_and_lets_the_others_go_on(self) -> None:
        peer = Peer()
        peer.opens(3)
        peer.connection.go_away()
        peer.connection.go_away()
        peer.heard()
        assert peer.say(wire.headers(5), wire.data(3, b"x")) == [Data(3, b"x")]
        assert wire.resets(peer.heard()) == [(5, wire.REFUSED_STREAM)]

    def test_is_over_when_no_stream_is_left(self) -> None:
        peer = Peer()
        peer.opens(3)
        peer.connection.go_away()
        assert not peer.connection.drained
        peer.connection.end(3, DONE)
        assert not peer.connection.drained  # Others may be under way.
        peer.connection.go_away()
        assert peer.connection.drained
        assert not peer.connection.closed

    def test_never_names_a_later_stream_than_before(self) -> None:
        peer = Peer()
        peer.connection.go_away()
        peer.connection.go_away()
        peer.say(wire.headers(5))
        peer.heard()
        peer.say(wire.data(0))
        assert wire.faults(peer.heard()) == [(1, wire.PROTOCOL_ERROR)]


class TestAPeerThatGoesAway:
    def test_has_its_streams_go_on_and_opens_no_more(self) -> None:
        peer = Peer()
        peer.opens(3)
        peer.say(wire.goaway())
        assert not peer.connection.closed
        assert peer.say(wire.data(3, b"x"), wire.headers(5)) == [Data(3, b"x")]
        assert wire.resets(peer.heard()) == [(5, wire.REFUSED_STREAM)]
        peer.connection.end(3, DONE)
        assert peer.connection.closed
        assert len(peer.heard()) == 2

    def test_with_no_stream_left_has_closed_the_connection_in_order(self) -> None:
        peer = Peer()
        peer.say(wire.goaway())
        assert peer.connection.closed
        assert not [f for f in peer.heard() if isinstance(f, GoAwayFrame)]
