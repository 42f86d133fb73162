"""Whatever a peer sends, in whatever order."""

from __future__ import annotations

import json
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from extproc.core.catalog import Catalog
from extproc.core.conversation import (
    PENDING,
    BodyMode,
    Conversation,
    Event,
    Immediate,
    Kind,
    Proceed,
)
from extproc.core.ledger import Ledger
from extproc.core.paths import INFERENCE_PATHS
from extproc.core.router import Router
from tests.core.bodies import bodies
from tests.core.builders import catalog, model_spec, thorough, without_endpoints

LLAMA = model_spec("llama", aliases=["l"], adapters=["sql"], meanLoadFactor=100)
QWEN = model_spec("qwen", endpoints=["10.0.1.1:8000"], prefixSource="Header:x-session")
EVIL = "6.6.6.6:6666"

catalogs = st.sampled_from([catalog(LLAMA), catalog(LLAMA, QWEN), without_endpoints(LLAMA)])

models = st.sampled_from(["llama", "l", "sql", "llama_sql", "qwen", "gpt", EVIL, ""])
paths = st.sampled_from([*INFERENCE_PATHS, "/v1/models", "/", "", f"/{EVIL}"])
headers = st.fixed_dictionaries(
    {":path": paths.map(str.encode), ":method": st.sampled_from([b"GET", b"POST", b""])},
    optional={
        "x-model": models.map(str.encode) | st.binary(max_size=5),
        "x-session": st.binary(max_size=5),
        "content-type": st.sampled_from(
            [b"application/json", b'multipart/form-data; boundary="XX"', b"\xff", b""]
        ),
        "x-target-endpoint": st.just(EVIL.encode()),
        "x-target-endpoint-fallback": st.just(EVIL.encode()),
    },
)


def _json_body(model: str) -> bytes:
    return json.dumps({"model": model, "prompt": "hi", "x-target-endpoint": EVIL}).encode()


def _form_body(model: str) -> bytes:
    field = f'Content-Disposition: form-data; name="model"\r\n\r\n{model}'
    return f"--XX\r\n{field}\r\n--XX--\r\n".encode()


request_bodies = st.one_of(
    models.map(_json_body), models.map(_form_body), bodies(), st.binary(max_size=20)
)
cut_bodies = st.tuples(request_bodies, st.integers(0, 60)).map(lambda pair: pair[0][: pair[1]])

events = st.one_of(
    st.builds(
        Event,
        st.just(Kind.REQUEST_HEADERS),
        headers=headers,
        end_of_stream=st.booleans(),
        body_mode=st.sampled_from(BodyMode),
    ),
    st.builds(
        Event,
        st.just(Kind.REQUEST_BODY),
        body=request_bodies | cut_bodies,
        end_of_stream=st.booleans(),
    ),
    st.builds(Event, st.sampled_from(Kind), end_of_stream=st.booleans()),
    st.builds(
        Event,
        st.just(Kind.RESPONSE_HEADERS),
        served_by=st.sampled_from(["", "10.0.0.1:8000", "10.0.0.2:8000", "10.9.9.9:1"]),
    ),
)
well_begun = st.tuples(
    st.builds(
        Event,
        st.just(Kind.REQUEST_HEADERS),
        headers=st.builds(
            lambda path: {":path": path.encode(), ":method": b"POST"},
            st.sampled_from(["/v1/completions", "/v1/chat/completions"]),
        ),
    ),
    st.builds(
        Event, st.just(Kind.REQUEST_BODY), body=models.map(_json_body), end_of_stream=st.booleans()
    ),
).map(list)
sequences = st.lists(events, max_size=8) | st.tuples(well_begun, st.lists(events, max_size=5)).map(
    lambda pair: pair[0] + pair[1]
)


@thorough
@given(catalogs, sequences)
def test_every_event_has_one_answer_of_its_kind_and_nothing_follows_an_immediate_one(
    models: Catalog, sequence: list[Event]
) -> None:
    conversation = Conversation(Router(Ledger(), models), Random(0))
    ended = False
    for event in sequence:
        answer = conversation.receive(event)
        if ended or event.kind is Kind.UNKNOWN:
            assert answer is None
        elif isinstance(answer, Immediate):
            ended = True
            json.loads(answer.body)
        else:
            assert isinstance(answer, Proceed)
            assert answer.kind is event.kind


@thorough
@given(catalogs, sequences, st.integers(0, 8))
def test_at_most_one_lease_is_held_and_none_after_the_end_whenever_it_comes(
    models: Catalog, sequence: list[Event], end: int
) -> None:
    router = Router(Ledger(), models)
    conversation = Conversation(router, Random(0))
    for event in sequence[:end]:
        conversation.receive(event)
        assert sum(router.ledger.loads.values()) <= 1
    conversation.close()
    assert dict(router.ledger.loads) == {}
    for event in sequence[end:]:
        assert conversation.receive(event) is None
    conversation.close()
    assert dict(router.ledger.loads) == {}
    assert list(router.ledger.held()) == []


@thorough
@given(catalogs, sequences)
def test_a_target_is_a_ready_endpoint_or_pending_and_never_the_clients(
    models: Catalog, sequence: list[Event]
) -> None:
    router = Router(Ledger(), models)
    ready = {
        endpoint.address
        for model in router.catalog.models.values()
        for endpoint in model.snapshot.endpoints
    }
    conversation = Conversation(router, Random(0))
    for event in sequence:
        answer = conversation.receive(event)
        if not isinstance(answer, Proceed):
            continue
        if answer.decision is not None:
            of_model = router.catalog.models[answer.decision.model].snapshot.endpoints
            assert answer.target == answer.decision.address
            assert answer.target in {endpoint.address for endpoint in of_model}
            assert answer.decision.fallback in {None, *ready} - {answer.target}
        elif answer.kind is Kind.REQUEST_HEADERS and answer.reroute:
            assert answer.target in {PENDING, *ready}
        else:
            assert answer.target == ""
        assert not answer.reroute or answer.kind is Kind.REQUEST_HEADERS


@thorough
@given(catalogs, sequences)
def test_a_verdict_never_changes(models: Catalog, sequence: list[Event]) -> None:
    conversation = Conversation(Router(Ledger(), models), Random(0))
    verdict = None
    for event in sequence:
        conversation.receive(event)
        assert verdict is None or conversation.verdict is verdict
        verdict = conversation.verdict
    conversation.close()
    assert conversation.verdict is verdict
