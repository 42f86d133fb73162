"""Requests that wait for room get the same replies as others, only later."""

from __future__ import annotations

import json
import tracemalloc
from random import Random
from typing import Any

import pytest

from extproc.core.conversation.events import (
    BodyMode,
    Chunk,
    Event,
    Immediate,
    Kind,
    LongerTimeout,
    Modes,
    Proceed,
    Replies,
    Reply,
)
from extproc.core.conversation.head import HEAD_LIMIT
from extproc.core.conversation.phase import Phase
from extproc.core.conversation.queued import MOST_HELD_BYTES
from extproc.core.conversation.state_machine import Conversation
from tests.core.flow_control.scene import Flow

MODES = [BodyMode.BUFFERED, BodyMode.AHEAD, BodyMode.DUPLEX, BodyMode.NONE]


def headers(mode: BodyMode, **more: bytes) -> Event:
    named = {":path": b"/v1/completions", ":method": b"POST", **more}
    return Event(Kind.REQUEST_HEADERS, named, modes=Modes(mode))


def body(data: bytes | None = None, *, end: bool = True) -> Event:
    whole = json.dumps({"model": "llama", "prompt": "hello"}).encode() if data is None else data
    return Event(Kind.REQUEST_BODY, body=whole, end_of_stream=end)


class Stream:
    """A conversation, and all replies to it in order."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self.conversation = Conversation(flow.router, Random(0), flow=flow.control)
        self.replies: list[Reply] = []

    def receive(self, *events: Event) -> None:
        for event in events:
            self.replies += self.conversation.receive(event)
            if self.conversation.queued is not None:
                self.conversation.send = self._sent

    def _sent(self, replies: Replies) -> None:
        self.replies += replies

    @property
    def without_holds(self) -> list[Any]:
        """The replies, with the endpoint and the body only."""
        return [
            (reply.kind, reply.target, reply.body) if isinstance(reply, Proceed) else reply
            for reply in self.replies
            if not isinstance(reply, LongerTimeout)
        ]


def requests(mode: BodyMode) -> list[Event]:
    """Return the events of a request with a body in two parts, as Envoy sends them."""
    if mode is BodyMode.NONE:
        return [headers(mode)]
    if mode is BodyMode.BUFFERED:
        return [headers(mode), body()]
    first, second = b'{"model": "llama", "prompt"', b': "hello"}'
    return [headers(mode), body(first, end=False), body(second)]


@pytest.mark.parametrize("mode", MODES)
def test_the_replies_are_the_same_as_without_a_wait(mode: BodyMode) -> None:
    at_once = Stream(Flow(endpoints=1))
    at_once.receive(*requests(mode))
    flow = Flow(endpoints=1)
    (busy,) = flow.fill()
    waiting = Stream(flow)
    waiting.receive(*requests(mode))
    assert waiting.conversation.phase is Phase.QUEUED
    busy.end()
    flow.run()
    assert waiting.without_holds == at_once.without_holds
    assert waiting.conversation.phase is at_once.conversation.phase


@pytest.mark.parametrize(
    ("mode", "holds"),
    [(BodyMode.BUFFERED, 1), (BodyMode.AHEAD, 1), (BodyMode.NONE, 1), (BodyMode.DUPLEX, 0)],
)
def test_envoy_waits_longer_where_it_has_a_timeout(mode: BodyMode, holds: int) -> None:
    flow = Flow(endpoints=1, maxWaitSeconds=30)
    flow.fill()
    waiting = Stream(flow)
    waiting.receive(*requests(mode))
    found = [reply for reply in waiting.replies if isinstance(reply, LongerTimeout)]
    assert [one.seconds for one in found] == [35.0] * holds


def test_each_part_that_comes_later_extends_envoys_timeout() -> None:
    """Envoy starts its short timeout again with each part that it sends."""
    head = b'{"model": "llama", "prompt": "' + b"x" * HEAD_LIMIT
    flow = Flow(endpoints=1, strategy="PrefixHash", maxWaitSeconds=30)
    flow.fill()
    waiting = Stream(flow)
    waiting.receive(headers(BodyMode.AHEAD), body(head, end=False))
    assert waiting.replies == [LongerTimeout(35.0)]
    waiting.receive(body(b"y" * 100, end=False), body(b'"}'), Event(Kind.REQUEST_TRAILERS))
    assert waiting.replies == [LongerTimeout(35.0)] * 4


def test_a_gateway_without_modes_gets_no_longer_timeout() -> None:
    flow = Flow(endpoints=1)
    flow.fill()
    waiting = Stream(flow)
    waiting.receive(headers(BodyMode.BUFFERED)._replace(modes=None), body())
    assert not any(isinstance(reply, LongerTimeout) for reply in waiting.replies)


def test_parts_that_come_later_are_answered_after_the_decision() -> None:
    """The prefix decides by the first part of a body, and the other parts come meanwhile."""
    head = b'{"model": "llama", "prompt": "' + b"x" * HEAD_LIMIT
    flow = Flow(endpoints=2, strategy="PrefixHash")
    busy, _ = flow.fill()
    waiting = Stream(flow)
    waiting.receive(headers(BodyMode.AHEAD), body(head, end=False))
    assert waiting.conversation.phase is Phase.QUEUED
    waiting.receive(body(b"y" * 100, end=False), body(b'"}'))
    waiting.receive(Event(Kind.REQUEST_TRAILERS))
    busy.end()
    flow.run()
    kinds = [reply.kind for reply in waiting.replies if isinstance(reply, Proceed)]
    assert kinds == [Kind.REQUEST_HEADERS, *[Kind.REQUEST_BODY] * 3, Kind.REQUEST_TRAILERS]


def test_whole_body_comes_back_after_the_decision() -> None:
    flow = Flow(endpoints=1)
    (busy,) = flow.fill()
    waiting = Stream(flow)
    waiting.receive(headers(BodyMode.AHEAD), body(end=False))
    assert waiting.conversation.phase is Phase.QUEUED
    waiting.receive(body(b"\n"))
    busy.end()
    flow.run()
    (reply,) = [reply for reply in waiting.replies if isinstance(reply, Proceed)]
    assert reply.whole_body == body().body


def test_all_bytes_come_back_in_full_duplex_mode() -> None:
    flow = Flow(endpoints=1, strategy="PrefixHash")
    (busy,) = flow.fill()
    waiting = Stream(flow)
    parts = [b'{"model": "llama", "prompt": "', b"x" * 100_000, b"y" * 70_000, b'"}']
    events = [body(part, end=part is parts[-1]) for part in parts]
    waiting.receive(headers(BodyMode.DUPLEX), *events)
    assert not waiting.replies
    busy.end()
    flow.run()
    chunks = [reply for reply in waiting.replies if isinstance(reply, Chunk)]
    assert b"".join(chunk.body for chunk in chunks) == b"".join(parts)
    assert [chunk.end_of_stream for chunk in chunks] == [False] * (len(chunks) - 1) + [True]


def test_a_body_too_large_to_hold_is_dispatched_without_room() -> None:
    flow = Flow(endpoints=1, strategy="PrefixHash")
    flow.fill()
    waiting = Stream(flow)
    head = b'{"model": "llama", "prompt": "' + b"x" * HEAD_LIMIT
    waiting.receive(headers(BodyMode.DUPLEX), body(head, end=False))
    waiting.receive(body(b"y" * MOST_HELD_BYTES, end=False))
    flow.run()
    assert flow.control.waiting == 1
    waiting.receive(body(b"y", end=False))
    flow.run()
    assert waiting.conversation.phase is Phase.PASSING


def test_a_refusal_ends_the_request() -> None:
    flow = Flow(endpoints=1)
    flow.fill()
    waiting = Stream(flow)
    waiting.receive(*requests(BodyMode.AHEAD))
    flow.now = 60.0
    flow.run()
    last = waiting.replies[-1]
    assert isinstance(last, Immediate)
    assert (last.status, last.details) == (503, "queue_timeout")
    assert waiting.conversation.phase is Phase.CLOSED


def test_a_stream_that_ends_leaves_the_queue() -> None:
    flow = Flow(endpoints=1)
    (busy,) = flow.fill()
    waiting = Stream(flow)
    waiting.receive(*requests(BodyMode.AHEAD))
    before = len(waiting.replies)
    waiting.conversation.close()
    assert flow.control.waiting == 0
    busy.end()
    flow.run()
    assert len(waiting.replies) == before
    assert dict(flow.fleet.ledger.loads) == {}


def test_a_stream_that_leaves_the_queue_holds_no_body() -> None:
    flow = Flow(endpoints=1)
    flow.fill()
    waiting = Stream(flow)
    waiting.receive(*requests(BodyMode.DUPLEX))
    waiting.receive(Event(Kind.REQUEST_TRAILERS))
    assert waiting.conversation.later
    waiting.conversation.close()
    assert not waiting.conversation.later


def test_a_response_of_envoy_itself_leaves_the_queue() -> None:
    flow = Flow(endpoints=1)
    flow.fill()
    waiting = Stream(flow)
    waiting.receive(*requests(BodyMode.AHEAD), Event(Kind.RESPONSE_HEADERS))
    assert flow.control.waiting == 0
    assert waiting.conversation.refused_earlier
    waiting.receive(body(b"late"), Event(Kind.REQUEST_TRAILERS), Event(Kind.RESPONSE_TRAILERS))
    assert [reply.kind for reply in waiting.replies if isinstance(reply, Proceed)] == [
        Kind.RESPONSE_HEADERS,
        Kind.REQUEST_BODY,
        Kind.REQUEST_TRAILERS,
        Kind.RESPONSE_TRAILERS,
    ]


@pytest.mark.parametrize("mode", [BodyMode.BUFFERED, BodyMode.AHEAD])
@pytest.mark.parametrize(("model", "kept"), [("llama", False), ("llama_sql", True)])
def test_a_body_that_envoy_holds_is_kept_only_if_it_changes(
    mode: BodyMode, model: str, kept: bool
) -> None:
    flow = Flow(endpoints=1, adapters=["sql"])
    flow.fill()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        waiting = [Stream(flow) for _ in range(20)]
        for number, stream in enumerate(waiting):
            data = json.dumps({"model": model, "prompt": f"{number} " + "x" * 100_000}).encode()
            stream.receive(headers(mode), body(data))
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert flow.control.waiting == 20
    assert (after - before > 20 * 50_000) is kept


@pytest.mark.parametrize("mode", [BodyMode.BUFFERED, BodyMode.AHEAD, BodyMode.DUPLEX])
def test_a_small_body_can_change_if_another_model_takes_the_name(mode: BodyMode) -> None:
    flow = Flow(endpoints=1)
    (busy,) = flow.fill()
    waiting = Stream(flow)
    waiting.receive(headers(mode), body())
    flow.publish(name="new", aliases=["llama"])
    flow.run()
    busy.end()
    flow.run()
    changed = [reply.body for reply in waiting.replies if isinstance(reply, Proceed | Chunk)]
    assert json.loads(changed[-1] or b"")["model"] == "new"


def test_a_large_body_that_would_have_to_change_is_refused() -> None:
    flow = Flow(endpoints=1)
    flow.fill()
    waiting = Stream(flow)
    large = json.dumps({"model": "llama", "prompt": "x" * 20_000}).encode()
    waiting.receive(headers(BodyMode.AHEAD), body(large))
    flow.publish(name="new", aliases=["llama"])
    flow.run()
    refused = waiting.replies[-1]
    assert isinstance(refused, Immediate)
    assert (refused.status, refused.headers["retry-after"]) == (503, "1")


def test_a_body_that_changes_is_kept() -> None:
    flow = Flow(endpoints=1, adapters=["sql"])
    (busy,) = flow.fill()
    waiting = Stream(flow)
    data = json.dumps({"model": "llama_sql", "prompt": "hello"}).encode()
    waiting.receive(headers(BodyMode.AHEAD), body(data))
    busy.end()
    flow.run()
    (_, changed) = [reply for reply in waiting.replies if isinstance(reply, Proceed)]
    assert changed.body is not None
    assert json.loads(changed.body)["model"] == "sql"
