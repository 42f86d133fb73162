from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.conversation.events import BodyMode, Chunk, Event, Kind, Modes, Proceed, Replies
from extproc.core.fleet.endpoint import Endpoint
from extproc.core.fleet.response_ids import MOST_MOVED, ResponseIds
from extproc.core.request.stored_responses import with_request_id
from extproc.core.schema import ModelSpec
from extproc.core.strategies import Reason
from tests.core.builders import TWO_ADDRESSES, endpoints, model_spec, thorough
from tests.core.conversation.test_duplex import Peer

RESPONSES = "/v1/responses"
LLAMA = model_spec("llama", aliases=["l"])
QWEN = model_spec("qwen", endpoints=["10.0.1.1:8000", "10.0.1.2:8000"])
MODES = [Modes(BodyMode.BUFFERED), Modes(BodyMode.AHEAD), Modes(BodyMode.DUPLEX)]
PLACES = endpoints(5)


def ids(seed: int = 0) -> ResponseIds:
    return ResponseIds(Random(seed).randbytes)


def asking(**fields: Any) -> bytes:
    return json.dumps({"input": "hello", "model": "l", **fields}).encode()


def sent(replies: Replies, body: bytes) -> dict[str, Any]:
    """Return the body that the server gets."""
    parts = [
        reply.body
        for reply in replies
        if isinstance(reply, Proceed | Chunk)
        and reply.kind is Kind.REQUEST_BODY
        and reply.body is not None
    ]
    found: dict[str, Any] = json.loads(b"".join(parts) if parts else body)
    return found


class TestResponseId:
    def test_names_the_endpoint_to_every_sidecar(self) -> None:
        for endpoint in PLACES:
            made = ids(1).assign(endpoint.address)
            assert ids(2).holder(made, PLACES) == endpoint.address

    def test_is_new_each_time(self) -> None:
        serving = ids()
        assert len({serving.assign("10.0.0.1:8000") for _ in range(100)}) == 100

    @pytest.mark.parametrize(
        "strange",
        ["", "resp_", "resp_1234", "resp_" + "0" * 32, "resp_" + "G" * 32, "msg_1", None, 5, ["x"]],
    )
    def test_from_elsewhere_names_no_endpoint(self, strange: object) -> None:
        assert ids().holder(strange, PLACES) is None

    def test_names_no_endpoint_after_it_left(self) -> None:
        made = ids().assign("10.9.9.9:8000")
        assert ids().holder(made, PLACES) is None

    def test_names_the_endpoint_that_served_the_retry(self) -> None:
        serving = ids()
        first, second = PLACES[0].address, PLACES[1].address
        made = serving.assign(first)
        serving.move(made, second)
        assert serving.holder(made, PLACES) == second
        assert serving.holder(made, PLACES[:1]) is None

    def test_that_moved_is_forgotten_after_many_others(self) -> None:
        serving = ids()
        first, second = PLACES[0].address, PLACES[1].address
        made = serving.assign(first)
        for number in range(MOST_MOVED + 1):
            serving.move(made if not number else str(number), second)
        assert serving.holder(made, PLACES) == first
        assert serving.holder(serving.assign(second), PLACES) == second


class TestBodyWithRequestId:
    @pytest.mark.parametrize(
        ("body", "changed"),
        [
            ("{}", '{"request_id":"resp_1"}'),
            ("{ }", '{ "request_id":"resp_1"}'),
            (' \r\n{\t"a": 1}', ' \r\n{\t"request_id":"resp_1","a": 1}'),
            ('{"a": {"b": 1}}', '{"request_id":"resp_1","a": {"b": 1}}'),
            ('{"a": "', '{"request_id":"resp_1","a": "'),
        ],
    )
    def test_has_the_id_as_first_field(self, body: str, changed: str) -> None:
        assert with_request_id(body.encode(), "resp_1").decode() == changed

    @thorough
    @given(st.dictionaries(st.text(), st.integers()), st.sampled_from([None, 2]))
    def test_keeps_all_other_fields(self, document: dict[str, int], indent: int | None) -> None:
        body = json.dumps(document, indent=indent).encode()
        changed = json.loads(with_request_id(body, "resp_1"))
        assert changed == {"request_id": "resp_1", **document}

    def test_stays_unchanged_if_it_is_no_object(self) -> None:
        assert with_request_id(b"[]", "resp_1") == b"[]"


def created(peer: Peer, body: bytes, path: str = RESPONSES) -> tuple[Proceed, dict[str, Any]]:
    """Return the reply with the decision, and the body that the server gets."""
    replies = (*peer.headers(path), *peer.body(body, end=True))
    decided = next(a for a in replies if isinstance(a, Proceed) and a.decision is not None)
    return decided, sent(replies, body)


class TestStoredResponse:
    @pytest.mark.parametrize("modes", MODES)
    def test_gets_an_id_that_names_its_endpoint(self, modes: Modes) -> None:
        peer = Peer(LLAMA, QWEN, modes=modes)
        decided, body = created(peer, asking(model="qwen"))
        assert body == {**json.loads(asking(model="qwen")), "request_id": body["request_id"]}
        for end in ("", "/cancel"):
            other = Peer(LLAMA, QWEN, modes=modes)
            (found,) = other.headers(f"/team{RESPONSES}/{body['request_id']}{end}", method="GET")
            assert isinstance(found, Proceed)
            assert found.decision is not None
            assert found.target == decided.target
            assert found.decision.reason is Reason.RESPONSE_ID
            assert found.decision.model == "qwen"
            assert other.in_flight == 1

    def test_gets_an_id_with_an_alias_too(self) -> None:
        _, body = created(Peer(LLAMA), asking(model="l"))
        assert body["model"] == "llama"
        assert body["request_id"].startswith("resp_")

    @pytest.mark.parametrize("address", TWO_ADDRESSES)
    @pytest.mark.parametrize("modes", MODES)
    @pytest.mark.parametrize("size", [10, 200_000, 1_500_000])
    def test_is_continued_on_its_endpoint(self, modes: Modes, address: str, size: int) -> None:
        peer = Peer(LLAMA, modes=modes)
        previous = peer.router.fleet.response_ids.assign(address)
        body = asking(input="x" * size, previous_response_id=previous)
        decided, _ = created(peer, body)
        assert decided.decision is not None
        assert (decided.target, decided.decision.reason) == (address, Reason.RESPONSE_ID)
        assert decided.decision.fallback in set(TWO_ADDRESSES) - {address}

    def test_is_continued_on_its_endpoint_if_the_id_comes_late(self) -> None:
        peer = Peer(LLAMA)
        for address in TWO_ADDRESSES:
            peer = Peer(LLAMA)
            previous = peer.router.fleet.response_ids.assign(address)
            body = asking(input="x" * 1000, previous_response_id=previous)
            peer.headers(RESPONSES)
            assert peer.body(body[:900]) == ()
            decided, *_ = peer.body(body[900:], end=True)
            assert isinstance(decided, Proceed)
            assert decided.target == address

    @pytest.mark.parametrize("address", TWO_ADDRESSES)
    def test_is_found_after_a_retry(self, address: str) -> None:
        peer = Peer(LLAMA, modes=MODES[1])
        _, body = created(peer, asking())
        peer.conversation.receive(Event(Kind.RESPONSE_HEADERS, served_by=address))
        holder = peer.router.fleet.response_ids.holder(
            body["request_id"], [Endpoint(one, one) for one in TWO_ADDRESSES]
        )
        assert holder == address

    def test_without_its_endpoint_is_requested_elsewhere(self) -> None:
        peer = Peer(model_spec("llama", endpoints=TWO_ADDRESSES[:1]))
        lost = peer.router.fleet.response_ids.assign(TWO_ADDRESSES[1])
        (found,) = peer.headers(f"{RESPONSES}/{lost}", method="GET", end=True)
        assert isinstance(found, Proceed)
        assert found.target == TWO_ADDRESSES[0]
        decided, _ = created(
            Peer(model_spec("llama", endpoints=TWO_ADDRESSES[:1])),
            asking(model="llama", previous_response_id=lost),
        )
        assert decided.target == TWO_ADDRESSES[0]

    def test_stays_within_the_gateways_subset(self) -> None:
        peer = Peer(LLAMA)
        held = peer.router.fleet.response_ids.assign(TWO_ADDRESSES[1])
        (found,) = peer.headers(
            f"{RESPONSES}/{held}", method="GET", end=True, subset=TWO_ADDRESSES[:1]
        )
        assert isinstance(found, Proceed)
        assert found.target == TWO_ADDRESSES[0]


class TestOtherBodies:
    @pytest.mark.parametrize(
        ("spec", "path", "fields"),
        [
            (LLAMA, RESPONSES, {"store": False}),
            (LLAMA, RESPONSES, {"request_id": "mine"}),
            (LLAMA, "/v1/chat/completions", {}),
            (LLAMA, "/v1/completions", {"store": True}),
            (LLAMA.model_copy(update={"response_ids": False}), RESPONSES, {}),
        ],
    )
    @pytest.mark.parametrize("modes", MODES)
    def test_keep_their_fields(
        self, modes: Modes, spec: ModelSpec, path: str, fields: dict[str, Any]
    ) -> None:
        body = asking(model="llama", **fields)
        assert created(Peer(spec, modes=modes), body, path)[1] == json.loads(body)

    def test_that_envoy_does_not_show_keep_their_fields(self) -> None:
        (reply,) = Peer(LLAMA, modes=Modes(BodyMode.NONE)).headers(RESPONSES)
        assert isinstance(reply, Proceed)
        assert reply.decision is not None
        assert reply.decision.response_id is None
