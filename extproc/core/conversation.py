"""One ext_proc conversation: Envoy's events in, answers out.

Theory of operation
-------------------
Envoy opens one stream for each HTTP request and sends an event for each part of
it that it was told to show us. Every event gets exactly one answer, of the same
kind, or, once, an immediate response that ends the HTTP request there; after
that nothing is answered. What Envoy sends depends on its processing mode, and a
peer may send anything, so the table below is total: an event that means nothing
in a phase is answered with "go on", changing nothing.

    OPENING  no request headers yet
    READING  the headers were answered, the body's head is to come
    ROUTED   the decision is made and its lease is held
    CLOSED   the request was answered by us, or the stream has ended

The *route* must change in the answer to the headers: for a body larger than
Envoy's buffer, a route change in the body's answer comes too late. So that
answer carries a provisional target, and the body's answer only overwrites the
target header, which chooses the host within the route.

Where Envoy retries on another endpoint and tells us which one answered, the
lease moves there. The stream's end releases it, however it comes: with Envoy's
`response_trailer_mode: SEND` the stream lives exactly as long as the request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from random import Random
from types import MappingProxyType
from typing import NamedTuple

from extproc.core.body import (
    MODEL_HEADER,
    Document,
    missing_model,
    model_in_form,
    model_in_json,
    read_json,
)
from extproc.core.errors import InvalidRequest, Refusal, UnknownPath, UnsupportedBodyMode
from extproc.core.paths import INFERENCE_PATHS, MODELS_PATH, Api, without_query
from extproc.core.router import Decision, Router

PENDING = "pending"
"""The provisional target where the model is not yet known: no address, so that
should we die before the body's answer, Envoy answers 503 instead of guessing."""


class Kind(Enum):
    """The parts of an HTTP request and its response that Envoy may show us."""

    REQUEST_HEADERS = auto()
    REQUEST_BODY = auto()
    REQUEST_TRAILERS = auto()
    RESPONSE_HEADERS = auto()
    RESPONSE_BODY = auto()
    RESPONSE_TRAILERS = auto()
    UNKNOWN = auto()
    """A kind of event that this version does not know."""


class BodyMode(Enum):
    """Whether, and in how many pieces, the request's body will be shown."""

    BUFFERED = auto()
    """One event with the body or its head (BUFFERED, BUFFERED_PARTIAL), or not told."""
    NONE = auto()
    OTHER = auto()
    """In chunks, after the headers have gone on: too late to choose by the body."""


class Event(NamedTuple):
    """One message of Envoy."""

    kind: Kind
    headers: Mapping[str, bytes] = MappingProxyType({})
    """Of REQUEST_HEADERS: names in lower case, raw values."""
    body: bytes = b""
    end_of_stream: bool = False
    body_mode: BodyMode = BodyMode.BUFFERED
    served_by: str = ""
    """Of RESPONSE_HEADERS: IP:PORT of the upstream that answered, if Envoy tells."""


class Proceed(NamedTuple):
    """Go on, perhaps with another target."""

    kind: Kind
    target: str = ""
    """Sets `x-target-endpoint`; nothing is changed where empty."""
    reroute: bool = False
    """Look at the routes again, with the target in place."""
    decision: Decision | None = None
    """Published as metadata, with the fallback candidate's header."""


class Immediate(NamedTuple):
    """Answer the client now."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    details: str


Answer = Proceed | Immediate


@dataclass(frozen=True)
class Listed:
    """The verdict on a request for the list of models."""


Verdict = Decision | Refusal | Listed


class Phase(Enum):
    """Where a conversation stands; see the module's docstring."""

    OPENING = auto()
    READING = auto()
    ROUTED = auto()
    CLOSED = auto()


class Conversation:
    """Feed it events with `receive`, and end it with `close`."""

    __slots__ = ("_api", "_headers", "_phase", "_rng", "_router", "verdict")

    def __init__(self, router: Router, rng: Random) -> None:
        self._router = router
        self._rng = rng
        self._phase = Phase.OPENING
        self._api = Api.GENERATE
        self._headers: dict[str, str] = {}
        self.verdict: Verdict | None = None
        """What became of the request, once that is known."""

    def receive(self, event: Event) -> Answer | None:
        """The answer to an event; None where the protocol wants none."""
        if self._phase is Phase.CLOSED or event.kind is Kind.UNKNOWN:
            return None
        step = _STEPS.get((self._phase, event.kind))
        if step is None:
            return Proceed(event.kind)
        try:
            return step(self, event)
        except Refusal as refusal:
            self._phase = Phase.CLOSED
            self.verdict = refusal
            return Immediate(refusal.status, refusal.headers, refusal.body(), refusal.code)

    def close(self) -> None:
        """The stream has ended: gives the lease back. Again, it does nothing."""
        self._phase = Phase.CLOSED
        if isinstance(self.verdict, Decision):
            self.verdict.lease.release()

    def _on_request_headers(self, event: Event) -> Answer:
        path = without_query(_text(event.headers, ":path"))
        method = _text(event.headers, ":method")
        if path == MODELS_PATH and method == "GET":
            return self._list_models()
        api = INFERENCE_PATHS.get(path)
        if api is None:
            raise UnknownPath(method, path)
        self._api = api
        self._keep(event.headers)
        if event.end_of_stream:
            return self._decide(event, complete=True)
        if event.body_mode is BodyMode.NONE:
            return self._decide_without_body(event)
        if event.body_mode is BodyMode.OTHER:
            raise UnsupportedBodyMode()
        self._phase = Phase.READING
        return Proceed(event.kind, target=self._provisional_target(), reroute=True)

    def _on_request_body(self, event: Event) -> Answer:
        return self._decide(event, complete=event.end_of_stream)

    def _on_request_without_body(self, event: Event) -> Answer:
        return self._decide(event, complete=True)

    def _on_response_headers(self, event: Event) -> Answer:
        verdict = self.verdict
        if isinstance(verdict, Decision) and event.served_by not in ("", verdict.address):
            verdict.lease.move(self._router.endpoint(verdict.model, event.served_by))
        return Proceed(event.kind)

    def _decide(self, event: Event, *, complete: bool) -> Answer:
        name, document = self._read(event.body, complete=complete)
        return self._route(event.kind, name, document)

    def _decide_without_body(self, event: Event) -> Answer:
        only = self._router.catalog.only()
        name = self._headers.get(MODEL_HEADER) or (only.spec.name if only else None)
        if name is None:
            raise InvalidRequest(
                f"Bodies are not shown to the router and there are several models: send the "
                f"header '{MODEL_HEADER}'.",
                param="model",
            )
        return self._route(event.kind, name, None)

    def _route(self, kind: Kind, name: str, document: Document | None) -> Proceed:
        decision = self._router.decide(self._router.place(name, document, self._headers))
        self.verdict = decision
        self._phase = Phase.ROUTED
        reroute = kind is Kind.REQUEST_HEADERS
        return Proceed(kind, decision.address, reroute=reroute, decision=decision)

    def _read(self, head: bytes, *, complete: bool) -> tuple[str, Document | None]:
        """The model's name, and the document where it may hold a prompt."""
        document = None
        if self._api is Api.FORM:
            content_type = self._headers.get("content-type", "")
            name = model_in_form(head, content_type, complete=complete)
        else:
            document = read_json(head, complete=complete)
            name = model_in_json(head, document, complete=complete)
        name = name or self._headers.get(MODEL_HEADER)
        if not name:
            raise missing_model(head, self._api)
        return name, document if self._api is Api.GENERATE else None

    def _provisional_target(self) -> str:
        """A ready endpoint where the model is certain before its body is read."""
        catalog = self._router.catalog
        named = self._headers.get(MODEL_HEADER)
        model, adapter = catalog.only(), ""
        if named and catalog.names(named):
            model, adapter = catalog.resolve(named)
        eligible = model.snapshot.eligible(adapter) if model else ()
        return self._rng.choice(eligible).address if eligible else PENDING

    def _keep(self, headers: Mapping[str, bytes]) -> None:
        for name in ("content-type", MODEL_HEADER, *self._router.catalog.key_headers):
            if name in headers:
                self._headers[name] = _text(headers, name)

    def _list_models(self) -> Immediate:
        self._phase = Phase.CLOSED
        self.verdict = Listed()
        headers = {"content-type": "application/json"}
        return Immediate(200, headers, self._router.catalog.listing(), "models_listed")


_STEPS: dict[tuple[Phase, Kind], Callable[[Conversation, Event], Answer]] = {
    (Phase.OPENING, Kind.REQUEST_HEADERS): Conversation._on_request_headers,
    (Phase.OPENING, Kind.REQUEST_BODY): Conversation._on_request_body,
    (Phase.READING, Kind.REQUEST_BODY): Conversation._on_request_body,
    # Trailers in place of a body: it was empty.
    (Phase.READING, Kind.REQUEST_TRAILERS): Conversation._on_request_without_body,
    (Phase.ROUTED, Kind.RESPONSE_HEADERS): Conversation._on_response_headers,
}


def _text(headers: Mapping[str, bytes], name: str) -> str:
    """A header's value; octets that are no UTF-8 show as replacement characters."""
    return headers.get(name, b"").decode("utf-8", "replace")
