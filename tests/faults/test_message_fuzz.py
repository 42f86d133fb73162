"""Streams of messages in any order, over the wire: one answer to each, and no lease is left."""

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
    invariant,
    rule,
    run_state_machine_as_test,
)

from extproc.edge.grpc.calls import Method
from extproc.edge.grpc.health import SERVICE
from extproc.edge.grpc.messages import Status
from extproc.edge.wire.external_processor_pb2 import ProcessingRequest, ProcessingResponse
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
"""Ways to show a body in which a request can be routed, beside full duplex."""

paths = st.sampled_from(["/v1/chat/completions", "/v1/embeddings", "/v1/models", "/", ""])
# A message is sent as one frame.
good = [body for body in GOOD if len(body) < 10_000]
# A body that comes in pieces is decided before its end where its salt comes first.
good += [body.replace(b"{", b'{"cache_salt": null, ', 1) for body in good if body[:1] == b"{"]
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
    """One Envoy with several streams, which it begins, feeds, breaks off and ends as it likes."""

    sent = 0
    """Messages, in all runs together."""
    routed: ClassVar[Counter[BodyMode]] = Counter()
    """Streams that began well, in all runs together."""

    def __init__(self) -> None:
        super().__init__()
        self.sidecar = Sidecar(model_spec("llama"), model_spec("qwen", strategy="PrefixCache"))
        process = Method(lambda _: self.sidecar.processor.open())
        self.client = GrpcClient({PROCESS.encode(): process})
        self.kinds: dict[int, list[str]] = {}
        self.bodies: dict[int, bytes] = {}
        """Of streams that are to give them back."""
        self.waiting: dict[int, list[str]] = {}
        """What was sent on streams whose headers' answer waits for the body."""
        self.ended: set[int] = set()
        """Of those, the ones of which all was sent."""
        self.over: set[int] = set()

    streams = Bundle("streams")
    duplex = Bundle("duplex")
    ahead = Bundle("ahead")

    @rule(target=streams)
    def open(self) -> int:
        stream = self.client.call(PROCESS)
        self.kinds[stream] = []
        return stream

    @rule(target=streams, path=opened, body=st.sampled_from(good), mode=st.sampled_from(SHOWN))
    def open_well(self, path: str, body: bytes, mode: BodyMode) -> int:
        """As most do, so that there are leases."""
        before = self.sidecar.in_flight
        stream: int = self.client.call(PROCESS)
        self.kinds[stream] = []
        self.send(stream, request_headers(path, mode=mode, x_model=b"llama"))
        if mode is not NONE:
            self.send(stream, request_body(body))
        Streams.routed[mode] += self.sidecar.in_flight - before
        return stream

    @rule(target=duplex, path=opened, body=st.sampled_from(good), cut=st.integers(0, 60))
    def open_duplex(self, path: str, body: bytes, cut: int) -> int:
        """The body comes in pieces, and its end, if ever, later."""
        before = self.sidecar.in_flight
        stream: int = self.client.call(PROCESS)
        self.bodies[stream] = b""
        self.client.send(stream, request_headers(path, mode=DUPLEX, x_model=b"llama"))
        self.send_piece(stream, body[:cut], end=False)
        self.send_piece(stream, body[cut:], end=False)
        Streams.routed[DUPLEX] += self.sidecar.in_flight - before
        return stream

    @rule(target=ahead, path=opened, body=st.sampled_from(good), cut=st.integers(0, 60))
    def open_ahead(self, path: str, body: bytes, cut: int) -> int:
        """The body comes before the headers are answered, in pieces, and its end later."""
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
        if stream not in self.over and not self._ended(stream):
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
    def send_of_the_answer(self, stream: int, message: bytes) -> None:
        if stream not in self.over:
            self.client.send(stream, message)
            Streams.sent += 1

    @rule(stream=streams, message=messages)
    def send(self, stream: int, message: bytes) -> None:
        if stream in self.over:
            return
        kind = _kind(message)
        immediate = self._ended(stream)
        answer = self.client.send(stream, message)
        Streams.sent += 1
        if kind and not immediate:
            self.kinds[stream].append(kind)
        assert len(answer.messages) == len(self.kinds[stream])

    @rule(stream=streams | duplex | ahead, garbage=st.binary(min_size=1, max_size=20))
    def send_garbage(self, stream: int, garbage: bytes) -> None:
        """What is no message ends this stream, and no other."""
        if stream in self.over or _is_message(garbage):
            return
        answer = self.client.send(stream, garbage)
        self.over.add(stream)
        assert answer.status is Status.INVALID_ARGUMENT

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
    def every_answer_is_of_its_messages_kind(self) -> None:
        for stream, kinds in self.kinds.items():
            told = [_answered(message) for message in self.client.results[stream].messages]
            for asked, answered in zip(kinds, told, strict=True):
                assert answered in (asked, "immediate_response")
            assert "immediate_response" not in told[:-1]

    @invariant()
    def what_waits_is_answered_in_order_or_not_yet(self) -> None:
        for stream, kinds in self.waiting.items():
            told = [_answered(message) for message in self.client.results[stream].messages]
            if told[-1:] == ["immediate_response"]:
                told.pop()
            elif told:
                assert len(told) == len(kinds)
            assert told == kinds[: len(told)]

    @invariant()
    def a_body_comes_back_as_it_was_sent_or_not_at_all(self) -> None:
        for stream, body in self.bodies.items():
            told = self.client.results[stream].messages
            kinds = [_answered(message) for message in told]
            assert "immediate_response" not in kinds[:-1]
            # The sidecar puts an id into a body that creates a response, and changes nothing else.
            back = _RESPONSE_ID.sub(b"", b"".join(map(_streamed_back, told)), count=1)
            if "request_headers" in kinds:
                assert back == body
                assert kinds.index("request_headers") < kinds.index("request_body")
                assert kinds.count("request_headers") == 1
            else:
                assert back == b""
                assert stream not in self.ended or kinds[-1:] == ["immediate_response"]

    @invariant()
    def only_open_streams_hold_leases(self) -> None:
        known = self.kinds.keys() | self.bodies.keys() | self.waiting.keys()
        open_streams = known - self.over
        assert self.sidecar.in_flight <= len(open_streams)

    def teardown(self) -> None:
        self.client.server.lost()
        assert self.sidecar.in_flight == 0

    def _ended(self, stream: int) -> bool:
        told = self.client.results[stream].messages
        return bool(told) and _answered(told[-1]) == "immediate_response"


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
def _streamed_back(message: bytes) -> bytes:
    answer = ProcessingResponse.FromString(message)
    piece: bytes = answer.request_body.response.body_mutation.streamed_response.body
    return piece


# All answers are looked at after each step.
@lru_cache(10_000)
def _answered(message: bytes) -> str | None:
    kind: str | None = ProcessingResponse.FromString(message).WhichOneof("response")
    return kind


def test_message_sequence_fuzz(report: Report) -> None:
    """One answer to each message, or the body as it was; nothing after a refusal; no lease left."""
    report.tried(
        f"{RUNS} connections of {STEPS} steps at the most, bodies in every mode, with another "
        "library as peer"
    )
    Streams.sent, Streams.routed = 0, Counter()
    once = settings(max_examples=RUNS, stateful_step_count=STEPS)
    run_state_machine_as_test(Streams, settings=once)
    modes = ", ".join(f"{mode.name} {count:,}" for mode, count in sorted(Streams.routed.items()))
    report.lost(
        unanswered=0, leases=0, what=f"of {Streams.sent:,} messages; streams begun well: {modes}"
    )
    assert (+Streams.routed).keys() == {*SHOWN, BodyMode.STREAMED, DUPLEX}
