from __future__ import annotations

import gc
import json
import sys
from collections.abc import Mapping
from random import Random
from typing import Any

import pytest

from extproc.core.conversation.events import (
    BodyMode,
    Event,
    Immediate,
    Kind,
    Modes,
    Proceed,
    Reply,
)
from extproc.core.conversation.provisional import PENDING
from extproc.core.conversation.state_machine import Conversation
from extproc.core.conversation.verdict import Listed
from extproc.core.fleet.fleet import Fleet
from extproc.core.request.refusals import InvalidRequest, Refusal
from extproc.core.routing.catalog import Catalog
from extproc.core.routing.decision import Decision
from extproc.core.routing.router import Router
from extproc.core.schema import ModelSpec
from extproc.core.strategies import Reason
from tests.core.builders import TWO_ADDRESSES, model_spec, router, without_endpoints

CHAT = "/v1/chat/completions"
LLAMA = model_spec("llama", adapters=["sql"])
QWEN = model_spec("qwen", endpoints=["10.0.1.1:8000"])
LATER_KINDS = [Kind.RESPONSE_HEADERS, Kind.RESPONSE_BODY, Kind.RESPONSE_TRAILERS]


class Peer:
    """Envoy's side of one stream that is not duplex: one reply per event."""

    def __init__(self, *specs: ModelSpec, catalog: Catalog | None = None) -> None:
        self.router = Router(Fleet(), catalog) if catalog else router(*specs)
        self.conversation = Conversation(self.router, Random(0))

    def headers(
        self,
        path: str = CHAT,
        *,
        method: str = "POST",
        end: bool = False,
        mode: BodyMode = BodyMode.BUFFERED,
        subset: tuple[str, ...] | None = None,
        **others: str,
    ) -> Reply | None:
        named = {name.replace("_", "-"): value.encode() for name, value in others.items()}
        raw = {":method": method.encode(), ":path": path.encode(), **named}
        return self.send(
            Event(
                Kind.REQUEST_HEADERS,
                headers=raw,
                end_of_stream=end,
                modes=Modes(mode),
                subset=subset,
            )
        )

    def body(self, content: Mapping[str, Any] | bytes, *, end: bool = True) -> Reply | None:
        raw = content if isinstance(content, bytes) else json.dumps(content).encode()
        return self.send(Event(Kind.REQUEST_BODY, body=raw, end_of_stream=end))

    def event(self, kind: Kind) -> Reply | None:
        return self.send(Event(kind))

    def send(self, event: Event) -> Reply | None:
        replies = self.conversation.receive(event)
        assert len(replies) <= 1
        return replies[0] if replies else None

    @property
    def in_flight(self) -> int:
        return sum(self.router.fleet.ledger.loads.values())


def proceeding(reply: Reply | None) -> Proceed:
    assert isinstance(reply, Proceed)
    return reply


def refusal(reply: Reply | None) -> tuple[int, str]:
    assert isinstance(reply, Immediate)
    return reply.status, json.loads(reply.body)["error"]["code"]


def asking(model: str = "llama", content: str = "hello") -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": content}]}


class TestReplyToHeaders:
    def test_names_a_ready_endpoint_of_the_only_model(self) -> None:
        reply = proceeding(Peer(LLAMA).headers())
        assert reply.kind is Kind.REQUEST_HEADERS
        assert reply.target in TWO_ADDRESSES
        assert reply.reroute
        assert reply.decision is None

    def test_is_pending_while_the_model_is_unknown(self) -> None:
        reply = proceeding(Peer(LLAMA, QWEN).headers())
        assert (reply.target, reply.reroute, reply.decision) == (PENDING, True, None)

    def test_names_an_endpoint_of_the_model_in_the_header(self) -> None:
        assert proceeding(Peer(LLAMA, QWEN).headers(x_model="qwen")).target == "10.0.1.1:8000"

    def test_is_pending_if_the_header_names_an_unknown_model(self) -> None:
        assert proceeding(Peer(LLAMA, QWEN).headers(x_model="gpt")).target == PENDING

    def test_is_pending_without_ready_endpoints(self) -> None:
        peer = Peer(catalog=without_endpoints(LLAMA))
        assert proceeding(peer.headers()).target == PENDING
        assert proceeding(Peer(catalog=without_endpoints(LLAMA)).headers(x_model="sql")).target == (
            PENDING
        )

    def test_takes_no_lease(self) -> None:
        peer = Peer(LLAMA)
        peer.headers()
        assert peer.in_flight == 0
        assert peer.conversation.verdict is None

    def test_spreads_over_the_endpoints(self) -> None:
        shared = router(LLAMA)
        rng = Random(0)
        targets = set()
        for _ in range(50):
            peer = Peer(LLAMA)
            peer.conversation = Conversation(shared, rng)
            targets.add(proceeding(peer.headers()).target)
        assert targets == set(TWO_ADDRESSES)

    def test_names_an_endpoint_of_the_subset(self) -> None:
        for allowed in TWO_ADDRESSES:
            for _ in range(5):
                assert proceeding(Peer(LLAMA).headers(subset=(allowed,))).target == allowed

    def test_is_pending_if_the_subset_has_no_endpoint(self) -> None:
        assert proceeding(Peer(LLAMA).headers(subset=("10.9.9.9:1",))).target == PENDING
        assert proceeding(Peer(LLAMA).headers(subset=())).target == PENDING

    def test_never_has_the_clients_target(self) -> None:
        peer = Peer(LLAMA, QWEN)
        assert proceeding(peer.headers(x_target_endpoint="6.6.6.6:66")).target == PENDING


class TestReplyToBody:
    def test_carries_the_decision(self) -> None:
        peer = Peer(LLAMA)
        peer.headers()
        reply = proceeding(peer.body(asking()))
        assert isinstance(reply.decision, Decision)
        assert reply.kind is Kind.REQUEST_BODY
        assert reply.target == reply.decision.address
        assert reply.target in TWO_ADDRESSES
        assert peer.conversation.verdict is reply.decision

    def test_changes_the_host_and_not_the_route(self) -> None:
        peer = Peer(LLAMA)
        peer.headers()
        assert not proceeding(peer.body(asking())).reroute

    def test_is_the_same_for_the_same_prefix(self) -> None:
        shared = router(LLAMA)
        homes: dict[str, set[str]] = {}
        for content in [f"conversation {i % 20}" for i in range(60)]:
            peer = Peer()
            peer.conversation = Conversation(shared, Random(0))
            peer.headers()
            homes.setdefault(content, set()).add(
                proceeding(peer.body(asking("llama", content))).target
            )
            peer.conversation.close()
        assert all(len(targets) == 1 for targets in homes.values())
        assert set().union(*homes.values()) == set(TWO_ADDRESSES)

    def test_holds_a_lease_until_the_stream_ends(self) -> None:
        peer = Peer(LLAMA)
        peer.headers()
        target = proceeding(peer.body(asking())).target
        assert dict(peer.router.fleet.ledger.loads) == {target: 1}
        for kind in LATER_KINDS:
            peer.event(kind)
            assert peer.in_flight == 1
        peer.conversation.close()
        assert peer.in_flight == 0

    def test_prefers_the_body_to_the_header(self) -> None:
        peer = Peer(LLAMA, QWEN)
        peer.headers(x_model="llama")
        assert proceeding(peer.body(asking("qwen"))).target == "10.0.1.1:8000"

    def test_uses_the_header_if_a_cut_body_has_no_model(self) -> None:
        peer = Peer(LLAMA, QWEN)
        peer.headers(x_model="qwen")
        reply = proceeding(peer.body(b'{"messages": [{"role": "user", "content": "a lo', end=False))
        assert reply.target == "10.0.1.1:8000"

    def test_accepts_a_cut_body_with_its_model(self) -> None:
        peer = Peer(LLAMA, QWEN)
        peer.headers()
        head = json.dumps(asking("qwen", "x" * 1000)).encode()[:200]
        assert proceeding(peer.body(head, end=False)).target == "10.0.1.1:8000"

    def test_has_the_adapter(self) -> None:
        peer = Peer(LLAMA)
        peer.headers()
        decision = proceeding(peer.body(asking("sql"))).decision
        assert decision is not None
        assert (decision.model, decision.adapter) == ("llama", "sql")

    def test_uses_a_header_as_key_if_configured(self) -> None:
        peer = Peer(model_spec("llama", prefixSource="Header:X-Session"))
        peer.headers(x_session="s-1", x_other="o")
        decision = proceeding(peer.body(asking())).decision
        assert decision is not None
        assert decision.reason is Reason.PREFIX

    def test_has_no_key_without_a_prompt(self) -> None:
        peer = Peer(LLAMA)
        peer.headers("/v1/embeddings")
        decision = proceeding(peer.body({"model": "llama", "input": "hello"})).decision
        assert decision is not None
        assert (decision.key, decision.reason) == (None, Reason.NO_PREFIX)

    def test_reads_the_model_of_a_form(self) -> None:
        peer = Peer(LLAMA, QWEN)
        peer.headers("/v1/audio/transcriptions", content_type="multipart/form-data; boundary=XX")
        form = b'--XX\r\nContent-Disposition: form-data; name="model"\r\n\r\nqwen\r\n--XX--\r\n'
        assert proceeding(peer.body(form)).target == "10.0.1.1:8000"

    def test_does_not_need_headers(self) -> None:
        reply = proceeding(Peer(LLAMA).body(asking()))
        assert reply.target in TWO_ADDRESSES
        assert not reply.reroute

    def test_decides_once(self) -> None:
        peer = Peer(LLAMA)
        peer.headers()
        peer.body(asking())
        assert peer.body(asking()) == Proceed(Kind.REQUEST_BODY)
        assert peer.in_flight == 1

    def test_uses_the_catalog_in_force(self) -> None:
        peer = Peer(LLAMA)
        peer.headers()
        peer.router.publish(router(QWEN).catalog)
        assert proceeding(peer.body(asking("qwen"))).target == "10.0.1.1:8000"


class TestSubset:
    @pytest.mark.parametrize("mode", [BodyMode.BUFFERED, BodyMode.NONE])
    @pytest.mark.parametrize("allowed", TWO_ADDRESSES)
    def test_limits_the_decision(self, mode: BodyMode, allowed: str) -> None:
        peer = Peer(LLAMA)
        reply = peer.headers(mode=mode, subset=(allowed, "10.9.9.9:8000"))
        if mode is BodyMode.BUFFERED:
            reply = peer.body(asking())
        decision = proceeding(reply).decision
        assert decision is not None
        assert (decision.address, decision.fallback) == (allowed, None)
        assert decision.candidates == 1

    @pytest.mark.parametrize("mode", [BodyMode.BUFFERED, BodyMode.NONE])
    @pytest.mark.parametrize("subset", [(), ("",), ("10.9.9.9:8000",), ("nonsense", "10.0.0.1:1")])
    def test_without_ready_endpoints_is_refused(
        self, mode: BodyMode, subset: tuple[str, ...]
    ) -> None:
        peer = Peer(LLAMA)
        reply = peer.headers(mode=mode, subset=subset)
        if mode is BodyMode.BUFFERED:
            reply = peer.body(asking())
        assert refusal(reply) == (503, "no_endpoints")
        assert isinstance(reply, Immediate)
        assert b"gateway allows" in reply.body
        assert peer.in_flight == 0


class TestHiddenBodies:
    def test_use_the_only_model(self) -> None:
        reply = proceeding(Peer(LLAMA).headers(mode=BodyMode.NONE))
        assert reply.target in TWO_ADDRESSES
        assert reply.reroute
        assert reply.decision is not None
        assert reply.decision.reason is Reason.NO_PREFIX

    def test_use_the_model_of_a_header(self) -> None:
        peer = Peer(LLAMA, QWEN)
        reply = proceeding(peer.headers(mode=BodyMode.NONE, x_model="qwen"))
        assert (reply.target, reply.reroute) == ("10.0.1.1:8000", True)
        assert peer.in_flight == 1

    def test_use_the_adapter_of_a_header(self) -> None:
        decision = proceeding(Peer(LLAMA).headers(mode=BodyMode.NONE, x_model="sql")).decision
        assert decision is not None
        assert decision.adapter == "sql"

    def test_are_refused_without_a_header(self) -> None:
        reply = Peer(LLAMA, QWEN).headers(mode=BodyMode.NONE)
        assert refusal(reply) == (400, "invalid_request")
        assert isinstance(reply, Immediate)
        assert b"x-model" in reply.body

    def test_are_refused_if_the_header_names_an_unknown_model(self) -> None:
        reply = Peer(LLAMA).headers(mode=BodyMode.NONE, x_model="gpt")
        assert refusal(reply) == (404, "model_not_found")

    def test_can_use_a_header_as_key(self) -> None:
        spec = model_spec("llama", prefixSource="Header:x-session")
        decision = proceeding(Peer(spec).headers(mode=BodyMode.NONE, x_session="s1")).decision
        assert decision is not None
        assert decision.reason is Reason.PREFIX


class TestRefusals:
    @pytest.mark.parametrize(
        "body",
        [
            *[b"", b"hello", b"[]", b"null", b'{"model": 7}', b'{"model": ""}'],
            *[b'{"model": "llama"', b"\xff", b"[" * 100_000, b'{"model": "\\ud800"}'],
        ],
    )
    def test_of_a_malformed_body(self, body: bytes) -> None:
        peer = Peer(LLAMA)
        peer.headers()
        reply = peer.body(body)
        assert refusal(reply) == (400, "invalid_request")
        assert isinstance(peer.conversation.verdict, InvalidRequest)
        assert peer.in_flight == 0

    def test_of_a_cut_body_without_its_model(self) -> None:
        peer = Peer(LLAMA, QWEN)
        peer.headers()
        head = b'{"messages": [{"role": "user", "content": "a lo'
        reply = peer.body(head, end=False)
        assert refusal(reply) == (400, "invalid_request")
        assert isinstance(reply, Immediate)
        for told in (f"The first {len(head)} bytes", "'x-model'", "Known models: llama, qwen"):
            assert told in json.loads(reply.body)["error"]["message"]

    def test_of_an_unknown_model(self) -> None:
        peer = Peer(LLAMA, QWEN)
        peer.headers()
        reply = peer.body(asking("gpt"))
        assert refusal(reply) == (404, "model_not_found")
        assert isinstance(reply, Immediate)
        assert b"Known models: llama, qwen, sql." in reply.body

    @pytest.mark.parametrize(
        ("method", "path"),
        [
            *[("GET", "/"), ("POST", ""), ("GET", "/metrics"), ("POST", "/v1/models")],
            *[("POST", "/v1/chat/completionsx"), ("POST", "/V1/chat/completions")],
            *[("POST", "/v1/chat"), ("POST", "/v1/load_lora_adapter")],
            *[("DELETE", "/v1/models/llama"), ("POST", "/v1/chat/completions/..")],
        ],
    )
    def test_of_an_unknown_path(self, method: str, path: str) -> None:
        assert refusal(Peer(LLAMA).headers(path, method=method)) == (404, "unknown_path")

    def test_without_ready_endpoints(self) -> None:
        peer = Peer(catalog=without_endpoints(LLAMA))
        peer.headers()
        reply = peer.body(asking())
        assert refusal(reply) == (503, "no_endpoints")
        assert isinstance(reply, Immediate)
        assert int(reply.headers["retry-after"]) > 0

    def test_of_a_request_without_a_body(self) -> None:
        assert refusal(Peer(LLAMA).headers(end=True)) == (400, "invalid_request")

    def test_of_trailers_without_a_body(self) -> None:
        peer = Peer(LLAMA)
        peer.headers()
        assert refusal(peer.event(Kind.REQUEST_TRAILERS)) == (400, "invalid_request")

    def test_of_streamed_bodies(self) -> None:
        reply = Peer(LLAMA).headers(mode=BodyMode.OTHER)
        assert refusal(reply) == (500, "unsupported_body_mode")

    def test_of_a_streamed_body_without_headers(self) -> None:
        for mode in (BodyMode.OTHER, BodyMode.DUPLEX):
            event = Event(Kind.REQUEST_BODY, body=b"{}", end_of_stream=True, modes=Modes(mode))
            assert refusal(Peer(LLAMA).send(event)) == (500, "unsupported_body_mode")

    def test_are_json_with_the_code_as_details(self) -> None:
        reply = Peer(LLAMA).headers("/")
        assert isinstance(reply, Immediate)
        assert reply.headers["content-type"] == "application/json"
        assert reply.details == "unknown_path"

    def test_end_the_conversation(self) -> None:
        peer = Peer(LLAMA)
        peer.headers("/")
        verdict = peer.conversation.verdict
        assert [peer.event(kind) for kind in Kind] == [None] * len(Kind)
        assert peer.body(asking()) is None
        assert peer.conversation.verdict is verdict
        assert isinstance(verdict, Refusal)


class TestListOfModels:
    @pytest.mark.parametrize("path", ["/v1/models", "/v1/models?limit=5"])
    @pytest.mark.parametrize("end", [True, False])
    def test_is_an_immediate_response(self, path: str, end: bool) -> None:
        peer = Peer(LLAMA, QWEN)
        reply = peer.headers(path, method="GET", end=end)
        assert isinstance(reply, Immediate)
        assert (reply.status, reply.headers) == (200, {"content-type": "application/json"})
        listed = [entry["id"] for entry in json.loads(reply.body)["data"]]
        assert listed == ["llama", "sql", "qwen"]
        assert isinstance(peer.conversation.verdict, Listed)
        assert peer.body(b"") is None


class TestOtherEvents:
    @pytest.mark.parametrize("kind", LATER_KINDS)
    def test_of_the_response_continue_in_every_phase(self, kind: Kind) -> None:
        peer = Peer(LLAMA)
        assert peer.event(kind) == Proceed(kind)
        peer.headers()
        assert peer.event(kind) == Proceed(kind)
        peer.body(asking())
        assert peer.event(kind) == Proceed(kind)
        assert peer.in_flight == 1

    def test_of_unknown_kind_get_no_reply(self) -> None:
        peer = Peer(LLAMA)
        assert peer.event(Kind.UNKNOWN) is None
        peer.headers()
        assert peer.event(Kind.UNKNOWN) is None
        assert isinstance(proceeding(peer.body(asking())).decision, Decision)

    def test_repeated_headers_change_nothing(self) -> None:
        peer = Peer(LLAMA)
        peer.headers()
        assert peer.headers("/elsewhere") == Proceed(Kind.REQUEST_HEADERS)
        assert proceeding(peer.body(asking())).target in TWO_ADDRESSES

    def test_request_trailers_after_the_body_continue(self) -> None:
        peer = Peer(LLAMA)
        peer.headers()
        peer.body(asking(), end=False)
        assert peer.event(Kind.REQUEST_TRAILERS) == Proceed(Kind.REQUEST_TRAILERS)


class TestRetry:
    """Envoy reports with the response headers that another endpoint responded."""

    def peer(self) -> tuple[Peer, str, str]:
        """Return a routed request, its endpoint and the other endpoint."""
        peer = Peer(LLAMA)
        peer.headers()
        chosen = proceeding(peer.body(asking())).target
        (other,) = set(TWO_ADDRESSES) - {chosen}
        return peer, chosen, other

    def answered_by(self, peer: Peer, address: str) -> Reply | None:
        return peer.send(Event(Kind.RESPONSE_HEADERS, served_by=address))

    def test_moves_the_lease(self) -> None:
        peer, _, other = self.peer()
        assert self.answered_by(peer, other) == Proceed(Kind.RESPONSE_HEADERS)
        assert dict(peer.router.fleet.ledger.loads) == {other: 1}
        peer.conversation.close()
        assert peer.in_flight == 0

    def test_on_the_same_endpoint_keeps_the_lease(self) -> None:
        peer, chosen, _ = self.peer()
        for address in (chosen, ""):
            assert self.answered_by(peer, address) == Proceed(Kind.RESPONSE_HEADERS)
            assert dict(peer.router.fleet.ledger.loads) == {chosen: 1}

    def test_on_a_removed_endpoint_counts_there(self) -> None:
        peer, _, _ = self.peer()
        self.answered_by(peer, "10.9.9.9:8000")
        assert dict(peer.router.fleet.ledger.loads) == {"10.9.9.9:8000": 1}

    def test_counts_once(self) -> None:
        peer, chosen, other = self.peer()
        for address in (other, other, chosen, other):
            self.answered_by(peer, address)
            assert dict(peer.router.fleet.ledger.loads) == {address: 1}

    def test_before_the_decision_or_after_the_end_is_ignored(self) -> None:
        peer = Peer(LLAMA)
        peer.headers()
        self.answered_by(peer, "10.0.0.1:8000")
        assert peer.in_flight == 0
        peer.body(asking())
        peer.conversation.close()
        assert self.answered_by(peer, "10.0.0.1:8000") is None
        assert peer.in_flight == 0


class TestClose:
    def test_releases_the_lease_once(self) -> None:
        peer = Peer(LLAMA)
        held = peer.router.fleet.ledger.acquire(
            "llama", peer.router.catalog.models["llama"].snapshot.endpoints[0]
        )
        peer.headers()
        peer.body(asking())
        assert peer.in_flight == 2
        peer.conversation.close()
        peer.conversation.close()
        assert peer.in_flight == 1
        held.release()
        assert peer.in_flight == 0

    def test_before_a_decision_leaves_no_verdict(self) -> None:
        peer = Peer(LLAMA)
        peer.headers()
        peer.conversation.close()
        assert peer.conversation.verdict is None
        assert peer.in_flight == 0

    def test_is_final(self) -> None:
        peer = Peer(LLAMA)
        peer.headers()
        peer.conversation.close()
        assert peer.body(asking()) is None
        assert peer.in_flight == 0


@pytest.mark.parametrize("body", [b"{" * 999, b'{"model": "nobody", "messages": []}', b"{}"])
def test_refused_body_is_freed_without_the_garbage_collector(body: bytes) -> None:
    body = body.ljust(5_000)  # a separate object without other references
    peer = Peer(LLAMA, QWEN)
    peer.headers()
    gc.collect()
    gc.disable()
    try:
        before = sys.getrefcount(body)
        assert refusal(peer.body(body))[0] in (400, 404)
        del peer
        assert sys.getrefcount(body) == before
    finally:
        gc.enable()
