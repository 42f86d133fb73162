"""Gateways whose messages differ from Envoy's, and the headers that all of them read."""

from __future__ import annotations

import json
from random import Random

import pytest

from extproc.core.conversation.events import BodyMode, Event, Kind, Modes, Proceed, Replies
from extproc.core.conversation.provisional import PENDING
from extproc.core.conversation.state_machine import Conversation
from extproc.core.schema import ModelSpec
from tests.core.builders import TWO_ADDRESSES, model_spec, router, split_spec
from tests.core.conversation.test_duplex import Peer, asking, refusal

LLAMA = model_spec("llama", aliases=["l"], adapters=["sql"])
QWEN = model_spec("qwen", endpoints=["10.0.1.1:8000"])
BUFFERED = Modes(BodyMode.BUFFERED, BodyMode.BUFFERED)
MULTIPART = b"multipart/form-data; boundary=B"
FORM = b'--B\r\nContent-Disposition: form-data; name="model"\r\n\r\nqwen\r\n--B--\r\n'


def proceed(replies: Replies, position: int = 0) -> Proceed:
    reply = replies[position]
    assert isinstance(reply, Proceed)
    return reply


class WithoutPath:
    """NGINX Gateway Fabric's endpoint picker client."""

    def __init__(self, *specs: ModelSpec) -> None:
        self.router = router(*specs)
        self.conversation = Conversation(self.router, Random(0))

    def headers(
        self, *, end: bool = False, content_type: bytes = b"application/json", **others: bytes
    ) -> Replies:
        headers = {name.replace("_", "-"): value for name, value in others.items()}
        headers["content-type"] = content_type
        event = Event(Kind.REQUEST_HEADERS, headers=headers, end_of_stream=end)
        return self.conversation.receive(event)

    def body(self, body: bytes) -> Replies:
        return self.conversation.receive(Event(Kind.REQUEST_BODY, body=body, end_of_stream=True))

    def asked(self, body: bytes, content_type: bytes = b"application/json") -> Replies:
        assert self.headers(content_type=content_type) == ()
        return self.body(body)


class TestGatewayWithoutPath:
    def test_gets_the_decision_in_the_reply_to_the_headers(self) -> None:
        peer = WithoutPath(LLAMA, QWEN)
        headers, body = peer.asked(asking("qwen"))
        assert isinstance(headers, Proceed)
        assert headers.kind is Kind.REQUEST_HEADERS
        assert headers.destination == headers.target == "10.0.1.1:8000"
        assert body == Proceed(Kind.REQUEST_BODY)

    def test_gets_one_address(self) -> None:
        reply = proceed(WithoutPath(LLAMA).asked(asking()))
        assert reply.decision is not None
        assert reply.decision.fallback is not None
        assert reply.destination in TWO_ADDRESSES

    @pytest.mark.parametrize(
        "fields",
        [
            {"messages": [{"role": "user", "content": "hello"}]},
            {"prompt": "hello"},
            {"input": "hello"},
            {"query": "hello", "documents": ["a"]},
            {},
        ],
    )
    def test_needs_no_path_for_any_body(self, fields: dict[str, object]) -> None:
        reply = proceed(WithoutPath(LLAMA).asked(json.dumps({"model": "l", **fields}).encode()))
        assert reply.target in TWO_ADDRESSES

    def test_is_routed_by_prefix(self) -> None:
        first, second = (
            proceed(WithoutPath(LLAMA).asked(json.dumps({"model": "l", **fields}).encode()))
            for fields in (
                {"messages": [{"role": "user", "content": "hello"}]},
                {"prompt": "hello"},
            )
        )
        assert first.decision is not None
        assert second.decision is not None
        assert first.decision.key is not None
        assert first.decision.key == second.decision.key

    def test_can_send_a_form(self) -> None:
        reply = proceed(WithoutPath(LLAMA, QWEN).asked(FORM, content_type=MULTIPART))
        assert reply.target == "10.0.1.1:8000"

    def test_gets_refusals_for_malformed_bodies(self) -> None:
        assert refusal(WithoutPath(LLAMA, QWEN).asked(b"{}")) == (400, "invalid_request")
        assert refusal(WithoutPath(LLAMA).asked(asking("gpt"))) == (404, "model_not_found")

    def test_gets_an_endpoint_of_the_only_model_without_a_body(self) -> None:
        assert proceed(WithoutPath(LLAMA).headers(end=True)).destination in TWO_ADDRESSES

    def test_must_name_one_of_several_models_without_a_body(self) -> None:
        assert refusal(WithoutPath(LLAMA, QWEN).headers(end=True)) == (400, "invalid_request")
        reply = proceed(WithoutPath(LLAMA, QWEN).headers(end=True, x_model=b"qwen"))
        assert reply.destination == "10.0.1.1:8000"

    def test_gets_replies_by_its_modes(self) -> None:
        conversation = Conversation(router(LLAMA, QWEN), Random(0))
        event = Event(Kind.REQUEST_HEADERS, modes=BUFFERED)
        assert proceed(conversation.receive(event)).target == PENDING


class TestBufferingGateway:
    """Envoy AI Gateway with `processing-body-mode: buffered`."""

    def test_gets_the_destination_in_the_reply_to_the_body(self) -> None:
        peer = Peer(LLAMA, QWEN, modes=BUFFERED)
        peer.headers()
        reply = proceed(peer.body(asking("qwen"), end=True))
        assert reply.destination == "10.0.1.1:8000"

    def test_gets_no_pending_destination_before_that(self) -> None:
        early = proceed(Peer(LLAMA, QWEN, modes=BUFFERED).headers())
        assert (early.target, early.destination) == (PENDING, "")

    def test_gets_a_ready_endpoint_before_that_if_the_model_is_certain(self) -> None:
        early = proceed(Peer(LLAMA, modes=BUFFERED).headers())
        assert early.destination == early.target
        assert early.target in TWO_ADDRESSES


class TestModelHeaders:
    @pytest.mark.parametrize("name", ["llama", "l", "sql", "llama_sql"])
    def test_have_the_requested_and_the_configured_name(self, name: str) -> None:
        reply = Peer(LLAMA, QWEN).routed(asking(name))
        assert (reply.requested, reply.model) == (name, "llama")

    def test_have_the_splits_and_the_targets_name(self) -> None:
        split = split_spec("canary", llama=1).model_copy(update={"aliases": ("c",)})
        for name in ("canary", "c"):
            reply = Peer(LLAMA, split).routed(asking(name))
            assert (reply.requested, reply.model) == (name, "llama")

    def test_come_before_the_body_if_a_header_names_the_model(self) -> None:
        early = proceed(Peer(LLAMA, QWEN, modes=BUFFERED).headers(x_model="l"))
        assert (early.requested, early.model) == ("l", "llama")

    def test_come_before_the_body_with_one_model(self) -> None:
        early = proceed(Peer(LLAMA, modes=BUFFERED).headers(x_model="unknown"))
        assert (early.requested, early.model) == ("llama", "llama")

    def test_are_missing_while_the_model_is_unknown(self) -> None:
        early = proceed(Peer(LLAMA, QWEN, modes=BUFFERED).headers(x_model="unknown"))
        assert (early.requested, early.model) == ("", "")


class TestSubsetWithTheBody:
    @pytest.mark.parametrize("mode", [BodyMode.BUFFERED, BodyMode.AHEAD, BodyMode.DUPLEX])
    @pytest.mark.parametrize("address", TWO_ADDRESSES)
    def test_is_respected(self, mode: BodyMode, address: str) -> None:
        peer = Peer(LLAMA, modes=Modes(mode))
        peer.headers()
        event = Event(Kind.REQUEST_BODY, body=asking(), end_of_stream=True, subset=(address,))
        assert proceed(peer.conversation.receive(event)).target == address

    @pytest.mark.parametrize("mode", [BodyMode.BUFFERED, BodyMode.AHEAD, BodyMode.DUPLEX])
    def test_does_not_replace_the_subset_of_the_headers(self, mode: BodyMode) -> None:
        first, second = TWO_ADDRESSES
        peer = Peer(LLAMA, modes=Modes(mode))
        peer.headers(subset=(first,))
        event = Event(Kind.REQUEST_BODY, body=asking(), end_of_stream=True, subset=(second,))
        assert proceed(peer.conversation.receive(event)).target == first

    def test_that_allows_nothing_is_refused(self) -> None:
        peer = Peer(LLAMA)
        peer.headers()
        event = Event(Kind.REQUEST_BODY, body=asking(), end_of_stream=True, subset=())
        assert refusal(peer.conversation.receive(event)) == (503, "no_endpoints")
