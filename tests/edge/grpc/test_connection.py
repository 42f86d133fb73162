"""gRPC over one HTTP/2 connection, without a socket. The client uses the h2 library.

h2 ignores frames after a GOAWAY, so test_servers.py tests drains.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from hpack import Encoder

from extproc.edge.grpc.calls import Method, Send
from extproc.edge.grpc.health import Health
from extproc.edge.grpc.messages import CallError, Status
from extproc.edge.http2 import Headers
from tests.edge.grpc_client import CallResult, GrpcClient

ECHO = "/lab.Echo/Echo"
CHECK, WATCH = "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"


class Echo:
    """A handler that echoes messages, except for some words."""

    owes_replies = False

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


class EchoClient(GrpcClient):
    """A client of a server with an echo method and health."""

    def __init__(self, *, window: int = 65_535, reads: bool = True) -> None:
        self.open_calls: list[Echo] = []
        self.health = Health()
        echo = Method(lambda *_: Echo(self.open_calls))
        super().__init__({ECHO.encode(): echo, **self.health.methods()}, window=window, reads=reads)

    def call(self, path: str = ECHO, *, content_type: str = "application/grpc+proto") -> int:
        return super().call(path, content_type=content_type)


def test_call_is_answered_message_by_message_and_ends_with_the_client() -> None:
    client = EchoClient()
    stream = client.call()
    answer = client.send(stream, b"one")
    assert answer.messages == [b"one"]
    assert answer.headers == {":status": "200", "content-type": "application/grpc"}
    client.send(stream, b"two", last=True)
    assert answer.messages == [b"one", b"two"]
    assert answer.status is Status.OK
    assert answer.reset is None
    assert client.open_calls == []


def test_call_without_responses_ends_with_headers_only() -> None:
    client = EchoClient()
    answer = client.send(client.call(), b"quiet", last=True)
    assert (answer.messages, answer.status, answer.trailers) == ([], Status.OK, {})


def test_call_is_closed_when_the_client_resets_it() -> None:
    client = EchoClient()
    stream = client.call()
    client.send(stream, b"one")
    assert len(client.open_calls) == 1
    client.h2.reset_stream(stream)
    client.flush()
    assert client.open_calls == []


def test_call_that_the_client_ends_and_resets_at_once_is_closed_silently() -> None:
    # As Envoy does with each request: the trailers would wake it up for nothing.
    client = EchoClient()
    stream = client.call()
    client.send(stream, b"one")
    client.h2.end_stream(stream)
    client.h2.reset_stream(stream)
    client.server.receive(client.h2.data_to_send(), 0.0)
    assert client.server.take() == b""
    assert client.open_calls == []


def test_all_calls_are_closed_when_the_connection_is_lost() -> None:
    client = EchoClient()
    for _ in range(3):
        client.send(client.call(), b"one")
    assert len(client.open_calls) == 3
    client.server.lost()
    client.server.lost()
    assert client.open_calls == []


def test_all_calls_are_closed_after_a_protocol_error() -> None:
    client = EchoClient()
    client.send(client.call(), b"one")
    client.server.receive(b"\0\0\0\0\0\0\0\0\0", 0.0)  # DATA of no stream
    assert client.server.over
    assert client.open_calls == []


@pytest.mark.parametrize("answered", [True, False])
def test_call_error_ends_the_call_with_its_status_and_message(answered: bool) -> None:
    client = EchoClient()
    stream = client.call()
    if answered:
        client.send(stream, b"one")
    answer = client.send(stream, b"refuse")
    assert answer.status is Status.NOT_FOUND
    ending = answer.trailers if answered else answer.headers
    assert ending["grpc-message"] == "no, 100 %25 not: %C3%BC"
    assert client.open_calls == []


def test_handler_exception_ends_only_its_own_call(caplog: pytest.LogCaptureFixture) -> None:
    client = EchoClient()
    other = client.call()
    with caplog.at_level(logging.ERROR):
        answer = client.send(client.call(), b"fail")
    assert answer.status is Status.INTERNAL
    assert "ZeroDivisionError" not in str(answer)
    assert len(caplog.records) == 1
    assert client.send(other, b"one").messages == [b"one"]


def test_compressed_message_is_unimplemented() -> None:
    client = EchoClient()
    stream = client.call()
    client.h2.send_data(stream, b"\1\0\0\0\1x")
    client.flush()
    assert client.results[stream].status is Status.UNIMPLEMENTED


def test_unknown_method_is_unimplemented() -> None:
    client = EchoClient()
    assert client.results[client.call("/lab.Echo/Other")].status is Status.UNIMPLEMENTED


def test_other_content_type_gets_http_415() -> None:
    client = EchoClient()
    answer = client.results[client.call(content_type="application/json")]
    assert (answer.headers, answer.ended) == ({":status": "415"}, True)


def test_other_http_method_gets_http_405() -> None:
    client = EchoClient()
    headers = [
        (b":method", b"CONNECT"),
        (b":authority", b"x"),
        (b"content-type", b"application/grpc"),
    ]
    block = Encoder().encode([(name, value, True) for name, value in headers])
    client.results[1] = CallResult()
    client.h2.get_next_available_stream_id()
    client.server.receive(_frame(0x1, 0x5, 1, b"\x20" + block), 0.0)
    assert b"405" in client.server.take()


def test_unexpected_ping_acknowledgement_is_ignored() -> None:
    client = EchoClient()
    stream = client.call()
    client.server.receive(_frame(0x6, 0x1, 0, b"12345678"), 0.0)
    assert client.send(stream, b"one").messages == [b"one"]


def test_exception_in_close_ends_no_other_call(
    caplog: pytest.LogCaptureFixture,
) -> None:
    client = EchoClient()
    other = client.call()
    stream = client.call()
    client.open_calls.remove(client.open_calls[-1])  # so that its `close` fails
    with caplog.at_level(logging.ERROR):
        assert client.send(stream, b"quiet", last=True).status is Status.OK
    assert len(caplog.records) == 1
    assert client.send(other, b"one").messages == [b"one"]


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4) + payload


class TestClientThatDoesNotRead:
    def test_cannot_send_without_limit(self) -> None:
        client = EchoClient(reads=False)
        stream = client.call()
        sent = 0
        while (window := client.h2.local_flow_control_window(stream)) > 10_000:
            client.send(stream, bytes(min(window, 16_000) - 5))
            sent += min(window, 16_000)
            assert sent < 2_000_000, "nothing holds it up"
        assert sent > 250_000

    def test_does_not_block_other_calls(self) -> None:
        client = EchoClient(reads=False)
        stalled = client.call()
        while client.h2.local_flow_control_window(stalled) > 10_000:
            client.send(stalled, bytes(9_000))
        client.h2.increment_flow_control_window(1 << 20)  # of the connection
        assert client.send(client.call(), b"one").messages == [b"one"]

    def test_continues_after_reading(self) -> None:
        client = EchoClient(reads=False)
        stream = client.call()
        messages = 0
        while client.h2.local_flow_control_window(stream) > 10_000:
            client.send(stream, bytes(9_000))
            messages += 1
        for window in (None, stream):
            client.h2.increment_flow_control_window(1 << 24, window)
        client.flush()
        assert len(client.results[stream].messages) == messages
        assert client.h2.local_flow_control_window(stream) > 50_000
        assert client.send(stream, b"one").messages[-1] == b"one"


class TestHealth:
    @staticmethod
    def statuses(answer: CallResult) -> list[str]:
        names = HealthCheckResponse.ServingStatus
        found = (HealthCheckResponse.FromString(message).status for message in answer.messages)
        return [names.Name(status) for status in found]

    def test_check_returns_the_status(self) -> None:
        client = EchoClient()
        asked = HealthCheckRequest(service="").SerializeToString()
        for serving, status in ((False, "NOT_SERVING"), (True, "SERVING")):
            client.health.set_serving(serving)
            answer = client.send(client.call(CHECK), asked, last=True)
            assert (self.statuses(answer), answer.status) == ([status], Status.OK)

    def test_check_of_unknown_service_is_not_found(self) -> None:
        client = EchoClient()
        asked = HealthCheckRequest(service="other").SerializeToString()
        assert client.send(client.call(CHECK), asked, last=True).status is Status.NOT_FOUND

    def test_watch_receives_changes_until_it_ends(self) -> None:
        client = EchoClient()
        asked = HealthCheckRequest(service="readiness").SerializeToString()
        stream = client.call(WATCH)
        answer = client.send(stream, asked, last=True)
        client.health.set_serving(True)
        assert self.statuses(answer) == ["NOT_SERVING", "SERVING"]
        assert not answer.ended
        client.h2.reset_stream(stream)
        client.flush()
        client.health.set_serving(False)
        assert self.statuses(answer) == ["NOT_SERVING", "SERVING"]

    def test_watch_of_unknown_service_reports_service_unknown(self) -> None:
        client = EchoClient()
        asked = HealthCheckRequest(service="other").SerializeToString()
        assert self.statuses(client.send(client.call(WATCH), asked)) == ["SERVICE_UNKNOWN"]

    def test_garbled_request_is_an_invalid_argument(self) -> None:
        client = EchoClient()
        assert client.send(client.call(CHECK), b"\xff").status is Status.INVALID_ARGUMENT


def test_pushed_message_is_sent_at_once() -> None:
    said: list[Send] = []

    class Silent:
        owes_replies = False

        def receive(self, message: bytes) -> Sequence[bytes]:
            return ()

        def close(self) -> None:
            return

    def handler(send: Send, _: Headers) -> Silent:
        said.append(send)
        return Silent()

    client = EchoClient()
    client.server._methods = {ECHO.encode(): Method(handler)}
    stream = client.call()
    said[0]((b"news", b"more"))
    assert client.results[stream].messages == [b"news", b"more"]
