"""Properties for any events in any order."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import chain, pairwise, product, starmap
from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from extproc.core.conversation.events import (
    CHUNK_LIMIT,
    ROUTING_HEADERS,
    BodyMode,
    Chunk,
    Event,
    Immediate,
    Kind,
    LongerTimeout,
    Modes,
    Proceed,
)
from extproc.core.conversation.phase import Phase
from extproc.core.conversation.provisional import PENDING
from extproc.core.conversation.state_machine import Conversation
from extproc.core.conversation.verdict import Passed
from extproc.core.fleet.fleet import Fleet
from extproc.core.fleet.outcome import Outcome
from extproc.core.request.paths import INFERENCE_PATHS
from extproc.core.request.rename import renamed_form, renamed_json
from extproc.core.request.stored_responses import with_request_id
from extproc.core.routing.catalog import Catalog
from extproc.core.routing.decision import Decision
from extproc.core.routing.router import Router
from tests.core.bodies import bodies, documents, written
from tests.core.builders import catalog, model_spec, split_spec, thorough, without_endpoints

LLAMA = model_spec("llama", aliases=["l"], adapters=["sql"], meanLoadFactor=100)
LISTENING = model_spec("llama", aliases=["l"], adapters=["sql"], strategy="LeastQueue")
PREDICTING = model_spec("llama", aliases=["l"], adapters=["sql"], strategy="PrefixCache")
QWEN = model_spec("qwen", endpoints=["10.0.1.1:8000"], prefixSource="Header:x-session")
CANARY = split_spec("canary", llama=2, qwen=1)
EVIL = "6.6.6.6:6666"
USAGE = b'{"usage": {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 3}}}'
REPORT = b"TEXT named_metrics.num_requests_waiting=3.0, named_metrics.kv_cache_usage_perc=0.25"

catalogs = st.sampled_from(
    [
        catalog(LLAMA),
        catalog(LLAMA, QWEN),
        catalog(LLAMA, QWEN, CANARY),
        catalog(LISTENING),
        catalog(PREDICTING),
        without_endpoints(LLAMA),
    ]
)

models = st.sampled_from(["llama", "l", "sql", "llama_sql", "qwen", "canary", "gpt", EVIL, ""])
known_paths = st.sampled_from([path.replace("*", EVIL) for path in INFERENCE_PATHS])
prefixes = st.sampled_from(["", "", "/team", f"/{EVIL}/", "/v1"])
suffixes = st.sampled_from(["", "", "/", "?beta=true", "?model=qwen", f"?model={EVIL}", "/x"])
paths = st.one_of(
    known_paths,
    st.builds(lambda *parts: "".join(parts), prefixes, known_paths, suffixes),
    st.sampled_from(["/v1/models", "/v1/models/llama", f"/v1/models/{EVIL}", "/app", "/", ""]),
)
methods = st.sampled_from([b"GET", b"POST", b"", b"DELETE", b"OPTIONS", b"HEAD", b"\xff"])
headers = st.fixed_dictionaries(
    {":method": methods},
    optional={
        ":path": paths.map(str.encode),
        "x-model": models.map(str.encode) | st.binary(max_size=5),
        "x-session": st.binary(max_size=5),
        "content-type": st.sampled_from(
            [b"application/json", b'multipart/form-data; boundary="XX"', b"\xff", b""]
        ),
        "x-target-endpoint": st.just(EVIL.encode()),
        "x-target-endpoint-fallback": st.just(EVIL.encode()),
        "x-gateway-destination-endpoint": st.just(EVIL.encode()),
        "x-request-id": st.binary(max_size=300),
        "anthropic-version": st.just(b"2023-06-01"),
        "x-gateway-model-name": st.just(EVIL.encode()),
    },
)


# The values of each field of an event; a compiled class has no annotations to read.
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    # A peer without path and modes gets replies in another order; it has its own tests.
    "headers": st.dictionaries(st.text(), st.binary()).map(lambda one: {":path": b"", **one}),
    "body": st.binary(),
    "end_of_stream": st.booleans(),
    "modes": st.none() | st.builds(Modes, st.sampled_from(BodyMode), st.sampled_from(BodyMode)),
    "subset": st.none() | st.lists(st.text()).map(tuple),
    "served_by": st.text(),
    "outcome": st.sampled_from([None, *Outcome]),
    "attempts": st.integers(),
    "load_report": st.none() | st.binary(),
}


def event(
    kind: st.SearchStrategy[Kind], **named: st.SearchStrategy[Any]
) -> st.SearchStrategy[Event]:
    """Return events; fields that are not named have any value."""
    return st.builds(Event, kind, **{**FIELDS, **named})


def _json_body(model: str) -> bytes:
    return json.dumps({"model": model, "prompt": "hi", "x-target-endpoint": EVIL}).encode()


def _form_body(model: str) -> bytes:
    field = f'Content-Disposition: form-data; name="model"\r\n\r\n{model}'
    return f"--XX\r\n{field}\r\n--XX--\r\n".encode()


request_bodies = st.one_of(
    models.map(_json_body), models.map(_form_body), bodies(), st.binary(max_size=20)
)
cut_bodies = st.tuples(request_bodies, st.integers(0, 60)).map(lambda pair: pair[0][: pair[1]])

subsets = st.none() | st.lists(
    st.sampled_from(["10.0.0.1:8000", "10.0.0.2", "10.0.1.1:8000", EVIL, "nonsense"]), max_size=3
).map(tuple)


def events(modes: Modes) -> st.SearchStrategy[Event]:
    """Return any events of a stream with these modes."""
    told = st.sampled_from([modes, None])
    return st.one_of(
        event(
            st.just(Kind.REQUEST_HEADERS),
            headers=headers,
            end_of_stream=st.booleans(),
            modes=st.just(modes),
            subset=subsets,
        ),
        event(
            st.just(Kind.REQUEST_BODY),
            body=request_bodies | cut_bodies,
            end_of_stream=st.booleans(),
            modes=told,
        ),
        event(st.sampled_from(Kind), end_of_stream=st.booleans(), modes=told),
        event(
            st.just(Kind.RESPONSE_HEADERS),
            served_by=st.sampled_from(["", "10.0.0.1:8000", "10.0.0.2:8000", "10.9.9.9:1"]),
            outcome=st.sampled_from([None, *Outcome]),
            attempts=st.integers(0, 3),
            load_report=st.sampled_from([None, b"", REPORT, b"TEXT nonsense", b"\xff"]),
            modes=told,
        ),
        event(
            st.just(Kind.RESPONSE_BODY),
            body=st.sampled_from([b"", b"data: {", USAGE, USAGE[:-1], b'{"usage": {', b"\xff"]),
            end_of_stream=st.booleans(),
            modes=told,
        ),
    )


def well_begun(
    modes: Modes, models: st.SearchStrategy[str], subsets: st.SearchStrategy[tuple[str, ...] | None]
) -> st.SearchStrategy[list[Event]]:
    """Return the events of a request as clients send it."""
    return st.tuples(
        event(
            st.just(Kind.REQUEST_HEADERS),
            headers=st.builds(
                lambda path: {":path": path.encode(), ":method": b"POST"},
                st.sampled_from(["/v1/completions", "/v1/chat/completions"]),
            ),
            end_of_stream=st.just(False),
            modes=st.just(modes),
            subset=subsets,
        ),
        event(
            st.just(Kind.REQUEST_BODY),
            body=models.map(_json_body),
            end_of_stream=st.booleans(),
            modes=st.none(),
        ),
    ).map(list)


def sequences_of(every: Iterable[Modes]) -> st.SearchStrategy[list[Event]]:
    """Return streams of these modes: events in any order, also after a normal beginning."""
    good = st.sampled_from(["llama", "sql"])
    return st.one_of(
        *(
            strategy
            for modes in every
            for strategy in (
                st.lists(events(modes), max_size=8),
                _joined(well_begun(modes, models, subsets), events(modes)),
                _joined(well_begun(modes, good, st.none()), events(modes)),
            )
        )
    )


def _joined(
    begun: st.SearchStrategy[list[Event]], more: st.SearchStrategy[Event]
) -> st.SearchStrategy[list[Event]]:
    return st.tuples(begun, st.lists(more, max_size=5)).map(lambda pair: pair[0] + pair[1])


def conversing(router: Router, pass_unknown: bool = False) -> Conversation:
    return Conversation(router, Random(0), pass_unknown=pass_unknown)


ONE_TO_ONE = [mode for mode in BodyMode if mode not in (BodyMode.AHEAD, BodyMode.DUPLEX)]
sequences = sequences_of(starmap(Modes, product(BodyMode, BodyMode)))
one_to_one = sequences_of(starmap(Modes, product(ONE_TO_ONE, ONE_TO_ONE)))


def duplex_of(response: BodyMode) -> st.SearchStrategy[list[Event]]:
    """Return streams whose request body is streamed back."""
    modes = Modes(BodyMode.DUPLEX, response)
    return sequences_of([modes]).map(
        lambda sequence: [event._replace(modes=modes) for event in sequence[:1]] + sequence[1:]
    )


duplex = st.one_of(*map(duplex_of, BodyMode))
ahead = sequences_of([Modes(BodyMode.AHEAD)])


@thorough
@given(catalogs, one_to_one, st.booleans())
def test_each_event_has_one_reply_of_its_kind_until_an_immediate_one(
    models: Catalog, sequence: list[Event], pass_unknown: bool
) -> None:
    conversation = conversing(Router(Fleet(), models), pass_unknown)
    ended = False
    for event in sequence:
        replies = conversation.receive(event)
        if ended or event.kind is Kind.UNKNOWN:
            assert replies == ()
            continue
        (reply,) = replies
        if isinstance(reply, Immediate):
            ended = True
            assert reply.headers.get("x-request-id", "x").isprintable()
            told = json.loads(reply.body)
            assert reply.status == 200 or "message" in told["error"]
        else:
            assert isinstance(reply, Proceed)
            assert reply.kind is event.kind


@thorough
@given(catalogs, sequences, st.integers(0, 8), st.booleans())
def test_at_most_one_lease_is_held_and_none_after_the_end(
    models: Catalog, sequence: list[Event], end: int, pass_unknown: bool
) -> None:
    router = Router(Fleet(), models)
    conversation = conversing(router, pass_unknown)
    for event in sequence[:end]:
        conversation.receive(event)
        assert sum(router.fleet.ledger.loads.values()) <= 1
    conversation.close()
    assert dict(router.fleet.ledger.loads) == {}
    for event in sequence[end:]:
        assert conversation.receive(event) == ()
    conversation.close()
    assert dict(router.fleet.ledger.loads) == {}
    assert list(router.fleet.ledger.held()) == []


@thorough
@given(catalogs, sequences, st.booleans())
def test_target_is_a_ready_endpoint_or_pending(
    models: Catalog, sequence: list[Event], pass_unknown: bool
) -> None:
    router = Router(Fleet(), models)
    ready = {
        endpoint.address
        for model in router.catalog.models.values()
        for endpoint in model.snapshot.endpoints
    }
    conversation = conversing(router, pass_unknown)
    for reply in chain.from_iterable(map(conversation.receive, sequence)):
        if not isinstance(reply, Proceed):
            continue
        if reply.decision is not None:
            of_model = router.catalog.models[reply.decision.model].snapshot.endpoints
            assert reply.target == reply.decision.address
            assert reply.target in {endpoint.address for endpoint in of_model}
            assert reply.decision.fallback in {None, *ready} - {reply.target}
            assert reply.destination in (reply.target, reply.decision.destination)
            assert reply.model == reply.decision.model
            assert router.catalog.names(reply.requested) or (
                reply.requested in router.catalog.splits
            )
        elif isinstance(conversation.verdict, Passed):
            assert reply.target == ""
            assert set(reply.remove_headers) <= set(ROUTING_HEADERS)
        elif reply.kind is Kind.REQUEST_HEADERS and reply.reroute:
            assert reply.target in {PENDING, *ready}
            assert reply.destination == ("" if reply.target == PENDING else reply.target)
        else:
            assert reply.target == ""
        assert not reply.reroute or reply.kind is Kind.REQUEST_HEADERS
        assert EVIL not in reply.destination


@thorough
@given(catalogs, sequences, st.booleans())
def test_verdict_never_changes(models: Catalog, sequence: list[Event], pass_unknown: bool) -> None:
    conversation = conversing(Router(Fleet(), models), pass_unknown)
    verdict = None
    for event in sequence:
        conversation.receive(event)
        assert verdict is None or conversation.verdict is verdict
        verdict = conversation.verdict
    conversation.close()
    assert conversation.verdict is verdict


# The parts of a request in the order of their replies.
RESPONSES = {Kind.RESPONSE_HEADERS, Kind.RESPONSE_BODY, Kind.RESPONSE_TRAILERS}
PARTS = [Kind.REQUEST_HEADERS, Kind.REQUEST_BODY, Kind.REQUEST_TRAILERS]


@thorough
@given(catalogs, duplex, st.booleans())
def test_duplex_body_is_streamed_back_once_and_in_order(
    models: Catalog, sequence: list[Event], pass_unknown: bool
) -> None:
    router = Router(Fleet(), models)
    conversation = conversing(router, pass_unknown)
    came, back, kinds, ends = bytearray(), bytearray(), list[Kind](), 0
    open_ = ended = bodiless = replaced = False
    for event in sequence:
        # The relevant part of the request: from its headers to the end of its body.
        if event.kind is Kind.REQUEST_HEADERS and not open_:
            open_ = True
            ended = bodiless = event.end_of_stream
        elif event.kind is Kind.REQUEST_BODY and open_ and not ended:
            came += event.body
            ended = event.end_of_stream
        elif event.kind is Kind.REQUEST_TRAILERS and open_:
            ended = True
        for reply in conversation.receive(event):
            if isinstance(reply, Immediate):
                return
            assert not isinstance(reply, LongerTimeout), "without flow control"
            if isinstance(reply, Proceed) and reply.whole_body is not None:
                back += reply.whole_body
                kinds.append(Kind.REQUEST_HEADERS)
                replaced = True
            elif open_:
                kinds.append(reply.kind)
            if isinstance(reply, Chunk) and reply.kind is Kind.REQUEST_BODY:
                assert len(reply.body) <= CHUNK_LIMIT
                back += reply.body
                ends += reply.end_of_stream
    assert kinds.count(Kind.REQUEST_HEADERS) <= 1
    assert ends <= 1
    verdict = conversation.verdict
    decided = isinstance(verdict, Decision | Passed)
    if isinstance(verdict, Decision) and verdict.changes_body:
        assert bytes(back) in edits(bytes(came), verdict)
    else:
        assert back == (came if decided else b"")
    if decided:
        order = [PARTS.index(kind) for kind in kinds if kind in PARTS]
        assert order == sorted(order)
        passed = ends == 1 or kinds.count(Kind.REQUEST_TRAILERS) == 1 or replaced
        assert bodiless or ended == passed
    conversation.close()
    assert dict(router.fleet.ledger.loads) == {}


def wholes(body: bytes, decision: Decision | None) -> set[bytes]:
    """Return the bodies that servers may get for this one, which was read whole."""
    assert decision is not None
    return edits(body, decision) if decision.changes_body else {body}


def edits(body: bytes, decision: Decision) -> set[bytes]:
    """Return the bodies that servers may get for this one."""
    names = {body} if decision.rename is None else renamings(body, decision.rename)
    response_id = decision.response_id
    return names if response_id is None else {with_request_id(n, response_id) for n in names}


def renamings(body: bytes, name: str) -> set[bytes]:
    """Return the body with another model name, for each possible length of its head."""
    content_type = "multipart/form-data; boundary=XX"
    heads = [(body[:length], body[length:]) for length in range(len(body) + 1)]
    return {renamed_json(head, name) + rest for head, rest in heads} | {
        renamed_form(head, content_type, name) + rest for head, rest in heads
    }


@thorough
@given(catalogs, ahead, st.booleans())
def test_body_ahead_of_the_reply_passes_whole_and_in_order(
    models: Catalog, sequence: list[Event], pass_unknown: bool
) -> None:
    router = Router(Fleet(), models)
    conversation = conversing(router, pass_unknown)
    asked = list[Kind]()
    answered = list[Kind]()
    came, went_on = list[bytes](), list[bytes]()
    for event in sequence:
        if event.kind is Kind.UNKNOWN or (asked and event.kind is Kind.REQUEST_HEADERS):
            continue
        first = not asked
        asked.append(event.kind)
        if event.kind is Kind.REQUEST_BODY:
            came.append(event.body)
        replies = conversation.receive(event._replace(modes=Modes(BodyMode.AHEAD)))
        if first and event.kind is not Kind.REQUEST_HEADERS:
            return  # in a stream that begins otherwise no part waits
        if event.kind in RESPONSES and conversation.verdict is None:
            return  # and Envoy has no response to a request that it has not sent
        for reply in replies:
            if isinstance(reply, Immediate):
                conversation.close()
                assert dict(router.fleet.ledger.loads) == {}
                return
            assert isinstance(reply, Proceed)
            answered.append(reply.kind)
            if reply.whole_body is not None:
                # Envoy takes no further replies to the request.
                assert reply.whole_body in wholes(b"".join(came), reply.decision)
                assert replies == (reply,)
                assert conversation.phase is Phase.PASSED
                return
            if reply.kind is Kind.REQUEST_BODY:
                shown = came[len(went_on)]
                went_on.append(shown if reply.body is None else reply.body)
        assert answered == asked[: len(answered)]
        assert len(answered) == len(asked) or conversation.verdict is None
    verdict = conversation.verdict
    body, arrived = b"".join(came), b"".join(went_on)
    if isinstance(verdict, Decision) and verdict.changes_body:
        assert arrived in edits(body, verdict)
    elif isinstance(verdict, Decision | Passed):
        assert arrived == body
    conversation.close()
    assert dict(router.fleet.ledger.loads) == {}


@thorough
@given(catalogs, sequences)
def test_passing_request_loses_only_routing_headers(models: Catalog, sequence: list[Event]) -> None:
    router = Router(Fleet(), models)
    conversation = conversing(router, pass_unknown=True)
    for event in sequence:
        before = conversation.verdict
        replies = conversation.receive(event)
        if not isinstance(conversation.verdict, Passed):
            continue
        assert dict(router.fleet.ledger.loads) == {}
        for reply in replies:
            assert not isinstance(reply, Immediate)
            if isinstance(reply, Proceed):
                sent = [name for name in ROUTING_HEADERS if name in event.headers]
                assert list(reply.remove_headers) == ([] if before else sent)
                assert (reply.body, reply.set_headers, reply.target) == (None, (), "")


@thorough
@given(catalogs, one_to_one, st.booleans())
def test_body_changes_only_by_the_decision_and_in_its_own_reply(
    models: Catalog, sequence: list[Event], pass_unknown: bool
) -> None:
    conversation = conversing(Router(Fleet(), models), pass_unknown)
    for event in sequence:
        for reply in conversation.receive(event):
            if not isinstance(reply, Proceed) or reply.body is None:
                continue
            assert reply.kind is event.kind is Kind.REQUEST_BODY
            assert reply.decision is not None
            assert reply.decision.changes_body
            assert reply.body != event.body
            assert reply.body in edits(event.body, reply.decision)
            length = ("content-length", str(len(reply.body)))
            assert (length in reply.set_headers) == event.end_of_stream
            assert ("content-length" in reply.remove_headers) != event.end_of_stream


@thorough
@given(catalogs, sequences, st.booleans())
def test_report_is_removed_only_if_the_sidecar_requested_it(
    models: Catalog, sequence: list[Event], pass_unknown: bool
) -> None:
    conversation = conversing(Router(Fleet(), models), pass_unknown)
    asked = False
    for event in sequence:
        for reply in conversation.receive(event):
            if isinstance(reply, Proceed) and reply.kind is Kind.RESPONSE_HEADERS:
                came = event.load_report is not None
                assert bool(reply.remove_headers) == (asked and came)
            elif isinstance(reply, Proceed):
                asked |= ("endpoint-load-metrics-format", "TEXT") in reply.set_headers
            if isinstance(reply, Proceed) and reply.decision is not None:
                assert reply.decision.reads_signals or not asked


@thorough
@given(catalogs, sequences)
def test_usage_needs_a_prediction_and_leaves_no_backlog(
    models: Catalog, sequence: list[Event]
) -> None:
    router = Router(Fleet(), models)
    conversation = Conversation(router, Random(0))
    shown = b""
    for event in sequence:
        conversation.receive(event)
        if event.kind is Kind.RESPONSE_BODY:
            shown += event.body
    verdict = conversation.verdict
    conversation.close()
    response = conversation.response
    if response is not None:
        assert isinstance(verdict, Decision)
        assert response._reader is None
        if response.usage is not None:
            assert verdict.prediction is not None
            assert USAGE in shown
            assert response.usage == (9, 3)
    assert not any(router.fleet.signals.backlog.tokens.values())


def _parts(body: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({min(cut, len(body)) for cut in cuts} | {0, len(body)})
    return [body[start:end] for start, end in pairwise(places)]


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """Return request bodies, some of them longer than the head limit."""
    items = list(draw(documents).items())
    model = draw(st.sampled_from(["llama", "l", "llama_sql"]))
    items.insert(draw(st.integers(0, len(items))), ("model", model))
    if draw(st.booleans()):
        items.append(("padding", "x" * draw(st.integers(1, 3 * CHUNK_LIMIT))))
    return written(dict(items), compact=draw(st.booleans()), ascii_only=draw(st.booleans()))


places = st.lists(st.integers(0, 300) | st.integers(0, 4 * CHUNK_LIMIT), max_size=12)
OF_A_PREFIX = st.sampled_from(["FirstUserMessage", "PromptHead", "Header:x-session"])


@thorough
@given(requests(), places, st.booleans(), OF_A_PREFIX, st.integers(1, 40))
def test_decision_does_not_depend_on_how_the_body_is_cut(
    body: bytes, cuts: list[int], with_trailers: bool, source: str, length: int
) -> None:
    spec = model_spec(
        "llama", aliases=["l"], adapters=["sql"], prefixSource=source, prefixCharLength=length
    )
    outcomes = []
    for parts in ([body], _parts(body, cuts)):
        conversation = Conversation(Router(Fleet(), catalog(spec)), Random(0))
        first = Event(
            Kind.REQUEST_HEADERS,
            headers={":path": b"/v1/chat/completions", ":method": b"POST", "x-session": b"s"},
            modes=Modes(BodyMode.DUPLEX),
        )
        replies = [*conversation.receive(first)]
        for i, part in enumerate(parts):
            end = i == len(parts) - 1 and not with_trailers
            event = Event(Kind.REQUEST_BODY, body=part, end_of_stream=end)
            replies += conversation.receive(event)
        if with_trailers:
            replies += conversation.receive(Event(Kind.REQUEST_TRAILERS))
        headers, *pieces = replies
        assert isinstance(headers, Proceed)
        assert headers.decision is not None
        in_parts = headers.whole_body is None
        if with_trailers and in_parts:
            assert pieces.pop() == Proceed(Kind.REQUEST_TRAILERS)
        assert in_parts or (with_trailers and not pieces)
        rename = headers.decision.rename
        back = b"".join(p.body for p in pieces if isinstance(p, Chunk))
        back = back if headers.whole_body is None else headers.whole_body
        assert back == (body if rename is None else renamed_json(body, rename))
        served = rename or json.loads(body)["model"]
        assert json.loads(back) == {**json.loads(body), "model": served}
        ends = [isinstance(p, Chunk) and p.end_of_stream for p in pieces]
        assert ends == ([*[False] * (len(ends) - 1), not with_trailers] if in_parts else [])
        outcomes.append((headers.target, headers.decision.key))
    assert outcomes[0] == outcomes[1]
