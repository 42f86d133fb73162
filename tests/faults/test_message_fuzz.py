"""Messages in any order over the wire: each gets one reply, and no lease remains."""

from __future__ import annotations

import re
from collections import Counter
from functools import lru_cache
from typing import ClassVar

import h2.errors
from google.protobuf.message import DecodeError
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from extproc.edge.grpc.calls import Method
from extproc.edge.grpc.health import SERVICE
from extproc.edge.grpc.messages import Status
from extproc.edge.wire.external_processor_pb2 import (
    CommonResponse,
    ProcessingRequest,
    ProcessingResponse,
)
from tests.core.builders import model_spec
from tests.edge.envoy import (
    DUPLEX,
    NONE,
    BodyMode,
    request_body,
    request_headers,
    request_trailers,
    response_body,
    response_headers,
    response_trailers,
)
from tests.edge.grpc_client import GrpcClient
from tests.edge.streams import Sidecar
from tests.extent import extent
from tests.faults.report import Report
from tests.faults.traps import GOOD, TRAPS

PROCESS = f"/{SERVICE}/Process"
RUNS = extent(40, full=2_000)
STEPS = 30

SHOWN = [BodyMode.BUFFERED_PARTIAL, BodyMode.BUFFERED, NONE]
"""Body modes in which a request can be routed, apart from the streamed ones."""

paths = st.sampled_from(["/v1/chat/completions", "/v1/embeddings", "/v1/models", "/", ""])
# Each message is sent in one frame, so large bodies are left out.
good = [body for body in GOOD if len(body) < 10_000]
# A request is decided before the end of its body if the salt is the first field.
good += [body.replace(b"{", b'{"cache_salt": null, ', 1) for body in good if body[:1] == b"{"]
decided_early = (
    b'{"cache_salt": null, "model": "llama", "messages": [{"role": "user", "content": "%b"}]}'
    % (b"long enough for a prefix, " * 8)
)
"""A body that is routed in every mode, also before its end."""
bodies = st.sampled_from([*good, *(trap for trap in TRAPS if len(trap) < 10_000)]) | st.binary(
    max_size=30
)
messages = st.one_of(
    st.builds(
        lambda path, mode, end: request_headers(path, mode=mode, end=end),
        paths,
        st.sampled_from([*SHOWN, BodyMode.STREAMED, BodyMode.GRPC, None]),
        st.booleans(),
    ),
    st.builds(lambda body, end: request_body(body, end=end), bodies, st.booleans()),
    st.builds(lambda body, cut: request_body(body[:cut]), bodies, st.integers(0, 60)),
    st.builds(lambda body, end: response_body(body, end=end), bodies, st.booleans()),
    st.sampled_from([request_trailers(), response_headers(), response_trailers(), b""]),
)
opened = st.sampled_from(["/v1/chat/completions", "/v1/responses"])
_RESPONSE_ID = re.compile(rb'"request_id":"resp_[^"]*",?')


class Streams(RuleBasedStateMachine):
    """An Envoy that opens, feeds, resets and ends several streams in random order."""

    sent = 0
    """Number of messages, in all runs together."""
    routed: ClassVar[Counter[BodyMode]] = Counter()
    """Number of routed streams by body mode, in all runs together."""

    def __init__(self) -> None:
        super().__init__()
        self.sidecar = Sidecar(model_spec("llama"), model_spec("qwen", strategy="PrefixCache"))
        process = Method(self.sidecar.processor.open)
        self.client = GrpcClient({PROCESS.encode(): process})
        self.kinds: dict[int, list[str]] = {}
        self.bodies: dict[int, bytes] = {}
        """Bodies of the full-duplex streams, which must return them."""
        self.waiting: dict[int, list[str]] = {}
        """Kinds of the messages on streams that decide after the body arrives."""
        self.ended: set[int] = set()
        """Full-duplex streams whose whole body was sent."""
        self.over: set[int] = set()

    streams = Bundle("streams")
    duplex = Bundle("duplex")
    ahead = Bundle("ahead")

    @initialize(path=st.just("/v1/chat/completions"), body=st.just(decided_early))
    def open_one_stream_in_each_mode(self, path: str, body: bytes) -> None:
        for mode in SHOWN:
            self.open_valid(path=path, body=body, mode=mode)
        self.open_duplex(path=path, body=body, cut=10, end=True)
        self.open_ahead(path=path, body=body, cut=10)

    @rule(target=streams)
    def open(self) -> int:
        stream = self.client.call(PROCESS)
        self.kinds[stream] = []
        return stream

    @rule(target=streams, path=opened, body=st.sampled_from(good), mode=st.sampled_from(SHOWN))
    def open_valid(self, path: str, body: bytes, mode: BodyMode) -> int:
        """Open a stream with a valid request, so that there are leases."""
        before = self.sidecar.in_flight
        stream: int = self.client.call(PROCESS)
        self.kinds[stream] = []
        self.send(stream, request_headers(path, mode=mode, x_model=b"llama"))
        if mode is not NONE:
            self.send(stream, request_body(body))
        Streams.routed[mode] += self.sidecar.in_flight - before
        return stream

    @rule(
        target=duplex,
        path=opened,
        body=st.sampled_from(good),
        cut=st.integers(0, 60),
        end=st.booleans(),
    )
    def open_duplex(self, path: str, body: bytes, cut: int, end: bool) -> int:
        """Open a full-duplex stream with a body in two pieces."""
        before = self.sidecar.in_flight
        stream: int = self.client.call(PROCESS)
        self.bodies[stream] = b""
        self.client.send(stream, request_headers(path, mode=DUPLEX, x_model=b"llama"))
        self.send_piece(stream, body[:cut], end=False)
        self.send_piece(stream, body[cut:], end=end)
        Streams.routed[DUPLEX] += self.sidecar.in_flight - before
        return stream

    @rule(target=ahead, path=opened, body=st.sampled_from(good), cut=st.integers(0, 60))
    def open_ahead(self, path: str, body: bytes, cut: int) -> int:
        """Open a stream whose body arrives in pieces before the reply to its headers."""
        stream: int = self.client.call(PROCESS)
        self.waiting[stream] = []
        before = self.sidecar.in_flight
        self.send_ahead(
            stream, request_headers(path, mode=BodyMode.STREAMED, ahead=True, x_model=b"llama")
        )
        self.send_ahead(stream, request_body(body[:cut], end=False))
        self.send_ahead(stream, request_body(body[cut:], end=False))
        Streams.routed[BodyMode.STREAMED] += self.sidecar.in_flight - before
        return stream

    @rule(
        stream=ahead,
        message=st.builds(lambda body, end: request_body(body, end=end), bodies, st.booleans())
        | st.just(request_trailers()),
    )
    def send_ahead(self, stream: int, message: bytes) -> None:
        kind = _kind(message)
        if not (stream in self.over or self._refused(stream) or self._replaced(stream)):
            assert kind
            self.client.send(stream, message)
            Streams.sent += 1
            self.waiting[stream].append(kind)

    @rule(stream=duplex, piece=bodies, end=st.booleans())
    def send_piece(self, stream: int, piece: bytes, end: bool) -> None:
        if stream in self.over or stream in self.ended:
            return
        self.client.send(stream, request_body(piece, end=end))
        Streams.sent += 1
        self.bodies[stream] += piece
        if end:
            self.ended.add(stream)

    @rule(stream=duplex, message=st.sampled_from([response_headers(), response_trailers(), b""]))
    def send_response_message(self, stream: int, message: bytes) -> None:
        if stream not in self.over:
            self.client.send(stream, message)
            Streams.sent += 1

    @rule(stream=streams, message=messages)
    def send(self, stream: int, message: bytes) -> None:
        if stream in self.over:
            return
        kind = _kind(message)
        immediate = self._refused(stream)
        reply = self.client.send(stream, message)
        Streams.sent += 1
        if kind and not immediate:
            self.kinds[stream].append(kind)
        assert len(reply.messages) == len(self.kinds[stream])

    @rule(stream=streams | duplex | ahead, garbage=st.binary(min_size=1, max_size=20))
    def send_garbage(self, stream: int, garbage: bytes) -> None:
        """Send bytes that are not a message; they end this stream only."""
        if stream in self.over or _is_message(garbage):
            return
        reply = self.client.send(stream, garbage)
        self.over.add(stream)
        assert reply.status is Status.INVALID_ARGUMENT

    @rule(stream=consumes(streams) | consumes(duplex) | consumes(ahead))
    def reset(self, stream: int) -> None:
        if stream not in self.over:
            self.client.h2.reset_stream(stream, h2.errors.ErrorCodes.CANCEL)
            self.client.flush()
            self.over.add(stream)

    @rule(stream=consumes(streams) | consumes(duplex) | consumes(ahead))
    def end(self, stream: int) -> None:
        if stream not in self.over:
            self.client.h2.end_stream(stream)
            self.client.flush()
            self.over.add(stream)
            assert self.client.results[stream].status is Status.OK

    @invariant()
    def each_reply_has_the_kind_of_its_message(self) -> None:
        for stream, kinds in self.kinds.items():
            replies = [_reply_kind(message) for message in self.client.results[stream].messages]
            for sent, replied in zip(kinds, replies, strict=True):
                assert replied in (sent, "immediate_response")
            assert "immediate_response" not in replies[:-1]

    @invariant()
    def delayed_replies_arrive_in_order(self) -> None:
        for stream, kinds in self.waiting.items():
            replies = [_reply_kind(message) for message in self.client.results[stream].messages]
            if replies[-1:] == ["immediate_response"]:
                replies.pop()
            elif self._replaced(stream):
                assert len(replies) == 1
            elif replies:
                assert len(replies) == len(kinds)
            assert replies == kinds[: len(replies)]

    @invariant()
    def body_returns_unchanged_or_not_at_all(self) -> None:
        for stream, body in self.bodies.items():
            replies = self.client.results[stream].messages
            kinds = [_reply_kind(message) for message in replies]
            assert "immediate_response" not in kinds[:-1]
            # The sidecar puts an id into a body that creates a response, and changes nothing else.
            returned = _RESPONSE_ID.sub(b"", b"".join(map(_returned_piece, replies)), count=1)
            if "request_headers" in kinds:
                assert returned == body
                assert kinds.index("request_headers") < kinds.index("request_body")
                assert kinds.count("request_headers") == 1
            else:
                assert returned == b""
                assert stream not in self.ended or kinds[-1:] == ["immediate_response"]

    @invariant()
    def only_open_streams_hold_leases(self) -> None:
        known = self.kinds.keys() | self.bodies.keys() | self.waiting.keys()
        open_streams = known - self.over
        assert self.sidecar.in_flight <= len(open_streams)

    def teardown(self) -> None:
        self.client.server.lost()
        assert self.sidecar.in_flight == 0

    def _refused(self, stream: int) -> bool:
        replies = self.client.results[stream].messages
        return bool(replies) and _reply_kind(replies[-1]) == "immediate_response"

    def _replaced(self, stream: int) -> bool:
        return any(map(_replaces_body, self.client.results[stream].messages))


def _kind(message: bytes) -> str | None:
    kind: str | None = ProcessingRequest.FromString(message).WhichOneof("request")
    return kind


def _is_message(garbage: bytes) -> bool:
    try:
        ProcessingRequest.FromString(garbage)
    except DecodeError:
        return False
    return True


@lru_cache(10_000)
@lru_cache(10_000)
def _replaces_body(message: bytes) -> bool:
    """Return True if Envoy takes no further replies to the request."""
    reply = ProcessingResponse.FromString(message).request_headers.response
    return bool(reply.status == CommonResponse.CONTINUE_AND_REPLACE)


def _returned_piece(message: bytes) -> bytes:
    reply = ProcessingResponse.FromString(message)
    piece: bytes = reply.request_body.response.body_mutation.streamed_response.body
    return piece


# The invariants parse all replies again after each step.
@lru_cache(10_000)
def _reply_kind(message: bytes) -> str | None:
    kind: str | None = ProcessingResponse.FromString(message).WhichOneof("response")
    return kind


def test_message_sequence_fuzz(report: Report) -> None:
    """Each message gets one reply or its body back; none follows a refusal; no lease remains."""
    report.tried(
        f"{RUNS} connections of at most {STEPS} steps, bodies in every mode, with another "
        "library as the peer"
    )
    Streams.sent, Streams.routed = 0, Counter()
    once = settings(max_examples=RUNS, stateful_step_count=STEPS)
    run_state_machine_as_test(Streams, settings=once)
    modes = ", ".join(f"{mode.name} {count:,}" for mode, count in sorted(Streams.routed.items()))
    report.lost(
        unanswered=0, leases=0, what=f"of {Streams.sent:,} messages; valid streams: {modes}"
    )
    assert (+Streams.routed).keys() == {*SHOWN, BodyMode.STREAMED, DUPLEX}
