"""gRPC over one HTTP/2 connection, without a socket; the peer is the h2 library.

It hears nothing after a GOAWAY, so drains are in test_servers.py.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from hpack import Encoder

from extproc.edge.grpc.connection import Method, Send
from extproc.edge.grpc.health import Health
from extproc.edge.grpc.messages import CallError, Status
from tests.edge.peer import Answer
from tests.edge.peer import Peer as WirePeer

ECHO = "/lab.Echo/Echo"
CHECK, WATCH = "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"


class Echo:
    """Sends everything back, some words excepted."""

    def __init__(self, open_calls: list[Echo]) -> None:
        self._open = open_calls
        self._open.append(self)

    def receive(self, message: bytes) -> Sequence[bytes]:
        if message == b"refuse":
            raise CallError(Status.NOT_FOUND, "no, 100 % not: ü")
        if message == b"fail":
            raise ZeroDivisionError
        return () if message == b"quiet" else (message,)

    def close(self) -> None:
        self._open.remove(self)


class Peer(WirePeer):
    """Of a server that echoes, and says how it is."""

    def __init__(self, *, window: int = 65_535, reads: bool = True) -> None:
        self.open_calls: list[Echo] = []
        self.health = Health()
        echo = Method(lambda _: Echo(self.open_calls))
        super().__init__({ECHO.encode(): echo, **self.health.methods()}, window=window, reads=reads)

    def call(self, path: str = ECHO, *, content_type: str = "application/grpc+proto") -> int:
        return super().call(path, content_type=content_type)


def test_a_call_is_answered_message_by_message_and_ends_with_its_peer() -> None:
    peer = Peer()
    stream = peer.call()
    answer = peer.send(stream, b"one")
    assert answer.messages == [b"one"]
    assert answer.headers == {":status": "200", "content-type": "application/grpc"}
    peer.send(stream, b"two", last=True)
    assert answer.messages == [b"one", b"two"]
    assert answer.status is Status.OK
    assert answer.reset is None
    assert peer.open_calls == []


def test_a_call_without_an_answer_ends_with_headers_alone() -> None:
    peer = Peer()
    answer = peer.send(peer.call(), b"quiet", last=True)
    assert (answer.messages, answer.status, answer.trailers) == ([], Status.OK, {})


def test_a_call_that_its_peer_breaks_off_is_closed() -> None:
    peer = Peer()
    stream = peer.call()
    peer.send(stream, b"one")
    assert len(peer.open_calls) == 1
    peer.client.reset_stream(stream)
    peer.flush()
    assert peer.open_calls == []


def test_a_call_that_its_peer_ends_and_breaks_off_at_once_is_closed_without_a_word() -> None:
    # As Envoy does with each request: the trailers would wake it up for nothing.
    peer = Peer()
    stream = peer.call()
    peer.send(stream, b"one")
    peer.client.end_stream(stream)
    peer.client.reset_stream(stream)
    peer.server.receive(peer.client.data_to_send(), 0.0)
    assert peer.server.take() == b""
    assert peer.open_calls == []


def test_all_calls_are_closed_when_the_peer_is_gone() -> None:
    peer = Peer()
    for _ in range(3):
        peer.send(peer.call(), b"one")
    assert len(peer.open_calls) == 3
    peer.server.lost()
    peer.server.lost()
    assert peer.open_calls == []


def test_all_calls_are_closed_when_the_peer_breaks_the_protocol() -> None:
    peer = Peer()
    peer.send(peer.call(), b"one")
    peer.server.receive(b"\0\0\0\0\0\0\0\0\0", 0.0)  # DATA of no stream
    assert peer.server.over
    assert peer.open_calls == []


@pytest.mark.parametrize("answered", [True, False])
def test_a_refusal_ends_the_call_with_its_status_and_words(answered: bool) -> None:
    peer = Peer()
    stream = peer.call()
    if answered:
        peer.send(stream, b"one")
    answer = peer.send(stream, b"refuse")
    assert answer.status is Status.NOT_FOUND
    ending = answer.trailers if answered else answer.headers
    assert ending["grpc-message"] == "no, 100 %25 not: %C3%BC"
    assert peer.open_calls == []


def test_an_error_of_ours_ends_its_call_and_no_other(caplog: pytest.LogCaptureFixture) -> None:
    peer = Peer()
    other = peer.call()
    with caplog.at_level(logging.ERROR):
        answer = peer.send(peer.call(), b"fail")
    assert answer.status is Status.INTERNAL
    assert "ZeroDivisionError" not in str(answer)
    assert len(caplog.records) == 1
    assert peer.send(other, b"one").messages == [b"one"]


def test_a_compressed_message_is_not_understood() -> None:
    peer = Peer()
    stream = peer.call()
    peer.client.send_data(stream, b"\1\0\0\0\1x")
    peer.flush()
    assert peer.answers[stream].status is Status.UNIMPLEMENTED


def test_a_method_that_there_is_not_is_unimplemented() -> None:
    peer = Peer()
    assert peer.answers[peer.call("/lab.Echo/Other")].status is Status.UNIMPLEMENTED


def test_what_is_not_grpc_is_told_so_in_http() -> None:
    peer = Peer()
    answer = peer.answers[peer.call(content_type="application/json")]
    assert (answer.headers, answer.ended) == ({":status": "415"}, True)


def test_a_request_that_is_no_post_is_told_so_in_http() -> None:
    peer = Peer()
    headers = [
        (b":method", b"CONNECT"),
        (b":authority", b"x"),
        (b"content-type", b"application/grpc"),
    ]
    block = Encoder().encode([(name, value, True) for name, value in headers])
    peer.answers[1] = Answer()
    peer.client.get_next_available_stream_id()
    peer.server.receive(_frame(0x1, 0x5, 1, b"\x20" + block), 0.0)
    assert b"405" in peer.server.take()


def test_an_answer_to_no_ping_means_nothing() -> None:
    peer = Peer()
    stream = peer.call()
    peer.server.receive(_frame(0x6, 0x1, 0, b"12345678"), 0.0)
    assert peer.send(stream, b"one").messages == [b"one"]


def test_an_error_of_ours_at_the_end_of_a_call_ends_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    peer = Peer()
    other = peer.call()
    stream = peer.call()
    peer.open_calls.remove(peer.open_calls[-1])  # so that its `close` fails
    with caplog.at_level(logging.ERROR):
        assert peer.send(stream, b"quiet", last=True).status is Status.OK
    assert len(caplog.records) == 1
    assert peer.send(other, b"one").messages == [b"one"]


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4) + payload


class TestAPeerThatDoesNotReadItsAnswers:
    def test_may_not_send_without_end(self) -> None:
        peer = Peer(reads=False)
        stream = peer.call()
        sent = 0
        while (window := peer.client.local_flow_control_window(stream)) > 10_000:
            peer.send(stream, bytes(min(window, 16_000) - 5))
            sent += min(window, 16_000)
            assert sent < 2_000_000, "nothing holds it up"
        assert sent > 250_000

    def test_does_not_hold_others_up(self) -> None:
        peer = Peer(reads=False)
        stalled = peer.call()
        while peer.client.local_flow_control_window(stalled) > 10_000:
            peer.send(stalled, bytes(9_000))
        peer.client.increment_flow_control_window(1 << 20)  # of the connection
        assert peer.send(peer.call(), b"one").messages == [b"one"]

    def test_goes_on_when_it_has_read(self) -> None:
        peer = Peer(reads=False)
        stream = peer.call()
        messages = 0
        while peer.client.local_flow_control_window(stream) > 10_000:
            peer.send(stream, bytes(9_000))
            messages += 1
        for window in (None, stream):
            peer.client.increment_flow_control_window(1 << 24, window)
        peer.flush()
        assert len(peer.answers[stream].messages) == messages
        assert peer.client.local_flow_control_window(stream) > 50_000
        assert peer.send(stream, b"one").messages[-1] == b"one"


class TestHealth:
    @staticmethod
    def statuses(answer: Answer) -> list[str]:
        names = HealthCheckResponse.ServingStatus
        found = (HealthCheckResponse.FromString(message).status for message in answer.messages)
        return [names.Name(status) for status in found]

    def test_is_asked_once(self) -> None:
        peer = Peer()
        asked = HealthCheckRequest(service="").SerializeToString()
        for serving, status in ((False, "NOT_SERVING"), (True, "SERVING")):
            peer.health.set_serving(serving)
            answer = peer.send(peer.call(CHECK), asked, last=True)
            assert (self.statuses(answer), answer.status) == ([status], Status.OK)

    def test_of_what_we_do_not_know_is_not_found(self) -> None:
        peer = Peer()
        asked = HealthCheckRequest(service="other").SerializeToString()
        assert peer.send(peer.call(CHECK), asked, last=True).status is Status.NOT_FOUND

    def test_is_told_to_those_who_watch_until_they_go(self) -> None:
        peer = Peer()
        asked = HealthCheckRequest(service="readiness").SerializeToString()
        stream = peer.call(WATCH)
        answer = peer.send(stream, asked, last=True)
        peer.health.set_serving(True)
        assert self.statuses(answer) == ["NOT_SERVING", "SERVING"]
        assert not answer.ended
        peer.client.reset_stream(stream)
        peer.flush()
        peer.health.set_serving(False)
        assert self.statuses(answer) == ["NOT_SERVING", "SERVING"]

    def test_of_what_we_do_not_know_may_be_watched(self) -> None:
        peer = Peer()
        asked = HealthCheckRequest(service="other").SerializeToString()
        assert self.statuses(peer.send(peer.call(WATCH), asked)) == ["SERVICE_UNKNOWN"]

    def test_is_not_asked_with_garbage(self) -> None:
        peer = Peer()
        assert peer.send(peer.call(CHECK), b"\xff").status is Status.INVALID_ARGUMENT


def test_a_message_that_answers_none_is_sent_at_once() -> None:
    said: list[Send] = []

    class Silent:
        def receive(self, message: bytes) -> Sequence[bytes]:
            return ()

        def close(self) -> None:
            return

    def handler(send: Send) -> Silent:
        said.append(send)
        return Silent()

    peer = Peer()
    peer.server._methods = {ECHO.encode(): Method(handler)}
    stream = peer.call()
    said[0](b"news")
    assert peer.answers[stream].messages == [b"news"]
