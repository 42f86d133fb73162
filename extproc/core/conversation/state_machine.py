"""One ext_proc conversation: Envoy's events in, answers out.

Theory of operation
-------------------
Envoy opens one stream for each HTTP request and sends an event for each part of
it that it was told to show us. What it sends depends on its processing mode, and
a peer may send anything, so the table below is total: an event that means nothing
in a phase is answered with "go on", changing nothing.

    OPENING  no request headers yet
    READING  the headers were answered, the body's head is to come
    WAITING  the headers' answer waits until the body's head is enough, Envoy keeps the body
    HOLDING  the same, but the body is ours to give back
    PASSING  the decision is made, and the body goes back to Envoy as it comes
    PASSED   the same, and the whole of the request went back
    ROUTED   the decision is made, and nothing more of the request is asked for; or the request
             passes undecided
    CLOSED   the request was answered by us, or the stream has ended

From PASSING on the decision's lease is held. Every event gets exactly one answer, of
the same kind, or, once, an immediate response that ends the HTTP request there;
after that nothing is answered. Where bodies come ahead of the answer to the headers
(STREAMED, not waiting for it), that answer waits for the body, and each part of the body
waits with it. Where bodies are to be streamed back
(FULL_DUPLEX_STREAMED) it is the parts that are answered: the headers once, then every
byte of the body once and in order, in as many pieces as we like, then the trailers.
So an event may have no answer yet, and a later one several. What comes after the end
of such a body is ignored: Envoy may send the last piece twice (its issue 46237).

    OPENING -> READING -> ROUTED              the head in one event, after the headers
    OPENING -> ROUTED                         no body, or none that is shown or needed
    OPENING -> WAITING -> ROUTED              bodies that come ahead of the headers' answer
    OPENING -> HOLDING -> PASSING -> PASSED   bodies in pieces, to be streamed back
    OPENING -> PASSING -> PASSED              the same, where the headers were enough
    any     -> CLOSED

The *route* must change in the answer to the headers: for a body larger than
Envoy's buffer, a route change in the body's answer comes too late. So where the
headers must be answered before the body is seen, that answer carries a provisional
target, and the body's answer only overwrites the target header, which chooses the
host within the route. Where the headers' answer can wait, it carries the decision.

A request that is *passed*, because its path is unknown and the operator wants that, goes on as
it came, without the headers that choose an endpoint. It goes through the same phases.

Where the servers know the model by another name, the body's `model` is changed to it
in the same answer that lets the body go: as far as the body is shown, and where the
value of `model` was shown whole. A body that is not shown goes on as it is.

What Envoy shows of the endpoint's answer goes on as it is, and tells things
(`extproc.core.conversation.response`). The stream's end releases the lease, however it comes: with
Envoy's `response_trailer_mode: SEND` the stream lives exactly as long as the request.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from random import Random

from extproc.core.conversation.events import (
    ROUTING_HEADERS,
    BodyMode,
    Event,
    Immediate,
    Kind,
    Modes,
    Proceed,
    Reply,
    chunks,
)
from extproc.core.conversation.head import Head
from extproc.core.conversation.listing import Listing
from extproc.core.conversation.request import Request, api_without_path, header_text
from extproc.core.conversation.response import Response
from extproc.core.fleet.load_report import FORMAT, FORMAT_HEADER, REPORT_HEADER, ResponseVisibility
from extproc.core.request.paths import (
    ANTHROPIC_PATH,
    ANTHROPIC_VERSION,
    BODILESS_METHODS,
    RESPONSES_PATH,
    Api,
    Route,
    match,
    without_query,
)
from extproc.core.request.refusals import InvalidRequest, Refusal, UnknownPath, UnsupportedBodyMode
from extproc.core.request.request_id import request_id_of, response_headers
from extproc.core.routing.decision import Decision
from extproc.core.routing.resolved_request import ResolvedRequest
from extproc.core.routing.router import Router

__all__ = ["Conversation", "Event", "Kind", "Listed", "Passed", "Verdict"]

Replies = tuple[Reply, ...]

_UNTOLD = Modes()
_AHEAD = Modes(BodyMode.AHEAD)
_LENGTH = "content-length"
_OVERRIDDEN = (BodyMode.BUFFERED, BodyMode.NONE)
"""The modes of request bodies with which Envoy lets an answer change the modes."""


@dataclass(frozen=True)
class Listed:
    """The verdict on a request for the list of models, or for one of them."""


@dataclass(frozen=True)
class Passed:
    """The verdict on a request to an unknown path that goes on undecided."""


Verdict = Decision | Refusal | Listed | Passed


class Phase(Enum):
    """Where a conversation stands; see the module's docstring."""

    __hash__ = object.__hash__  # members are looked up with each event; Enum's own is slow

    OPENING = auto()
    READING = auto()
    WAITING = auto()
    HOLDING = auto()
    PASSING = auto()
    PASSED = auto()
    ROUTED = auto()
    CLOSED = auto()


class Conversation:
    """Feed it events with `receive`, and end it with `close`."""

    __slots__ = (
        *("_anthropic", "_asked", "_head", "_modes", "_pass_unknown", "_phase", "_prompt_bytes"),
        *("_request", "_response_passed", "_rng", "_router", "_shown"),
        *("refused_earlier", "request_id", "response", "verdict"),
    )

    _request: Request
    """From the request's headers on."""

    def __init__(
        self,
        router: Router,
        rng: Random,
        shown: ResponseVisibility | None = None,
        *,
        pass_unknown: bool = False,
    ) -> None:
        self._router = router
        self._pass_unknown = pass_unknown
        self._anthropic = False
        """Whether the client expects Anthropic's shapes."""
        self._rng = rng
        self._shown = shown or ResponseVisibility()
        self._asked = False
        self._phase = Phase.OPENING
        self._modes = _UNTOLD
        self._response_passed = False
        self._prompt_bytes = 0
        self._head: Head | None = None
        """While we wait only: a stream may live for hours, and nobody needs the head then."""
        self.refused_earlier = False
        """True if only the response is shown: an earlier filter of Envoy refused the request."""
        self.request_id = ""
        """The id that Envoy gave the request; empty where there is none."""
        self.verdict: Verdict | None = None
        """What became of the request, once that is known."""
        self.response: Response | None = None
        """The endpoint's answer, once something of it was shown."""

    def receive(self, event: Event) -> Replies:
        """The answers to send, in this order; none where the protocol wants none, or none yet."""
        if self._phase is Phase.CLOSED or event.kind is Kind.UNKNOWN:
            return ()
        if event.modes is not None:
            self._modes = event.modes
        step = _STEPS.get((self._phase, event.kind), Conversation._go_on)
        try:
            return step(self, event)
        except Refusal as refusal:
            self._phase = Phase.CLOSED
            self.verdict = refusal
            # The traceback leads to this conversation and to the body, which would stay in memory
            # until the collector finds the cycle.
            refusal.__traceback__ = refusal.__cause__ = refusal.__context__ = None
            body = refusal.body(self.request_id, anthropic=self._anthropic)
            headers = {**refusal.headers, **self._id_headers()}
            return (Immediate(refusal.status, headers, body, refusal.code),)

    def close(self) -> None:
        """The stream has ended: gives the lease back. Again, it does nothing."""
        self._phase = Phase.CLOSED
        if isinstance(self.verdict, Decision):
            if self.response is not None:
                self.response.over()
            self.verdict.lease.release()

    def _on_request_headers(self, event: Event) -> Replies:
        headers = event.headers
        self.request_id = request_id_of(headers)
        if ":path" not in headers:
            return self._on_headers_without_path(event)
        path, method = header_text(headers, ":path"), header_text(headers, ":method")
        route = match(path, method)
        if route is None:
            return self._on_unknown_path(event, path, method)
        if route.api is Api.MODELS:
            return self._list_models(route, anthropic=ANTHROPIC_VERSION in headers)
        self._anthropic = route.is_anthropic
        self._request = request = Request(
            self._router,
            route.api,
            headers,
            event.subset,
            creates_response=route.path == RESPONSES_PATH,
        )
        if route.api is Api.BARE or method in BODILESS_METHODS:
            return self._on_bare_request(event, route, path, method)
        if event.end_of_stream:
            resolved = request.resolve(b"", complete=True)
            return self._decide(event.kind, resolved, self._phase_after_headers(event))
        return self._await_body(event.kind)

    def _on_headers_without_path(self, event: Event) -> Replies:
        """Serve a peer that asks for an endpoint only, and that knows which paths exist.

        NGINX Gateway Fabric sends no pseudo headers, no modes, the whole body without waiting for
        an answer, and reads the endpoint from the answer to the headers. So that one waits.
        """
        api = api_without_path(event.headers)
        self._request = request = Request(self._router, api, event.headers, event.subset)
        if event.end_of_stream:
            resolved = request.resolve_unseen()
            return self._decide(event.kind, resolved, self._phase_after_headers(event))
        if self._modes is _UNTOLD:
            self._modes = _AHEAD
        return self._await_body(event.kind)

    def _await_body(self, kind: Kind) -> Replies:
        """Return the answer to the headers of a request with a body, or none yet."""
        request, mode = self._request, self._modes.request
        if mode is BodyMode.BUFFERED:
            self._phase = Phase.READING
            early = request.provisional(self._rng)
            return (
                Proceed(
                    kind,
                    early.target,
                    reroute=True,
                    destination=early.destination,
                    requested=early.requested,
                    model=early.model,
                ),
            )
        if mode is BodyMode.AHEAD or mode is BodyMode.DUPLEX:
            self._phase = Phase.WAITING if mode is BodyMode.AHEAD else Phase.HOLDING
            return ()
        if mode is BodyMode.NONE:
            return self._decide(kind, request.resolve_unseen())
        raise UnsupportedBodyMode()

    def _on_bare_request(self, event: Event, route: Route, path: str, method: str) -> Replies:
        """Decide by the headers alone; a body that may come goes on as it is."""
        if route.api is not Api.BARE and method != "OPTIONS":
            raise InvalidRequest(f"{method} is not a method of {route.path}: use POST.")
        resolved = None
        if route.stored_id and route.path.startswith(RESPONSES_PATH):
            resolved = self._request.resolve_stored(route.stored_id)
        resolved = resolved or self._request.resolve_bare(path, method)
        return self._decide(event.kind, resolved, self._phase_after_headers(event))

    def _on_unknown_path(self, event: Event, path: str, method: str) -> Replies:
        if not self._pass_unknown:
            self._anthropic = ANTHROPIC_PATH in path
            raise UnknownPath(method, without_query(path))
        self.verdict = Passed()
        self._phase = self._phase_after_headers(event)
        removed = tuple(name for name in ROUTING_HEADERS if name in event.headers)
        # A route may have been chosen by such a header.
        return (Proceed(event.kind, reroute=bool(removed), remove_headers=removed),)

    def _phase_after_headers(self, event: Event) -> Phase:
        """Return the phase of a request that goes on before its body was seen."""
        if self._modes.request is not BodyMode.DUPLEX:
            return Phase.ROUTED
        return Phase.PASSED if event.end_of_stream else Phase.PASSING

    def _on_body_alone(self, event: Event) -> Replies:
        """The headers were not shown, so there is no answer to them that could wait."""
        if self._modes.request is not BodyMode.BUFFERED:
            raise UnsupportedBodyMode()
        self._request = Request(self._router)
        return self._on_request_body(event)

    def _on_request_body(self, event: Event) -> Replies:
        request, body = self._request, event.body
        request.allow_only(event.subset)
        resolved = request.resolve(body, complete=event.end_of_stream)
        (answer,) = self._decide(event.kind, resolved)
        if event.end_of_stream:
            self._prompt_bytes = _size(resolved)
        decision = answer.decision
        if decision is not None and decision.changes_body:
            edited = request.edited(body, decision)
            if edited != body:
                answer = _with_body(answer, edited, complete=event.end_of_stream)
        return (answer,)

    def _on_request_without_body(self, event: Event) -> Replies:
        return self._decide(event.kind, self._request.resolve(b"", complete=True))

    def _on_awaited_body(self, event: Event) -> Replies:
        self._request.allow_only(event.subset)
        head = self._begun()
        if event.end_of_stream:
            resolved = head.end(event.body)
            self._prompt_bytes = _size(resolved)
            return self._let_on(head, resolved, head.parts + 1)
        early = head.add(event.body)
        return () if early is None else self._let_on(head, early, head.parts)

    def _on_awaited_trailers(self, event: Event) -> Replies:
        head = self._begun()
        decided, *parts = self._let_on(head, head.end(), head.parts)
        return (_not_to_be_retried(decided), *parts, Proceed(event.kind))

    def _let_on(self, head: Head, resolved: ResolvedRequest, parts: int) -> Replies:
        """The headers' answer, and one for each part of the body that waits for it."""
        self._head = None
        (decided,) = self._decide(Kind.REQUEST_HEADERS, resolved)
        decision = decided.decision
        if decision is None or not decision.changes_body or not parts:
            return (decided, *_GO_ON * parts)
        # All goes in place of the first part, and nothing in place of the others.
        first = Proceed(Kind.REQUEST_BODY, body=head.edited(decision))
        return (decided, first, *_LEAVE_OUT * (parts - 1))

    def _on_held_body(self, event: Event) -> Replies:
        self._request.allow_only(event.subset)
        head = self._begun()
        if event.end_of_stream:
            return self._let_go(head, head.end(event.body), Phase.PASSED)
        early = head.add(event.body)
        return () if early is None else self._let_go(head, early, Phase.PASSING)

    def _on_held_trailers(self, event: Event) -> Replies:
        head = self._begun()
        released = self._let_go(head, head.end(), Phase.PASSING)
        return (*released, *self._on_trailers(event))

    def _begun(self) -> Head:
        """What has come of the body that we wait for."""
        if self._head is None:
            self._head = Head(self._request)
        return self._head

    def _on_body(self, event: Event) -> Replies:
        if event.end_of_stream:
            self._phase = Phase.PASSED
        return chunks(event.kind, event.body, end_of_stream=event.end_of_stream)

    def _on_trailers(self, event: Event) -> Replies:
        self._phase = Phase.PASSED
        return (Proceed(event.kind),)

    def _ignore(self, _: Event) -> Replies:
        return ()

    def _on_response_headers(self, event: Event) -> Replies:
        self._shown.response_headers = True
        response = self._answered()
        if response is not None:
            response.headers(event)
        # One that is empty is ours to take away, too.
        ours = event.load_report is not None and self._asked
        removed: tuple[str, ...] = (REPORT_HEADER,) if ours else ()
        if response is None or not response.renames:
            return (Proceed(event.kind, remove_headers=removed),)
        shown = self._modes.response is not BodyMode.NONE
        asks = not shown and self._modes.request in _OVERRIDDEN
        response.keeps_name = not shown and not asks
        if shown or asks:  # then the length changes with the name
            removed += (_LENGTH,)
        return (Proceed(event.kind, remove_headers=removed, show_response=asks),)

    def _on_response_trailers(self, event: Event) -> Replies:
        response = self.response
        held = b"" if response is None or self._response_passed else response.rest()
        if self._modes.response is not BodyMode.DUPLEX:
            return (Proceed(event.kind),)
        return (*chunks(Kind.RESPONSE_BODY, held, end_of_stream=False), Proceed(event.kind))

    def _on_response_alone(self, event: Event) -> Replies:
        self.refused_earlier = True
        return (Proceed(event.kind),)

    def _go_on(self, event: Event) -> Replies:
        if event.kind is Kind.RESPONSE_BODY:
            return self._pass_response(event)
        if event.kind is Kind.RESPONSE_TRAILERS:
            return self._on_response_trailers(event)
        return (Proceed(event.kind),)

    def _pass_response(self, event: Event) -> Replies:
        duplex = self._modes.response is BodyMode.DUPLEX
        if self._response_passed:
            return () if duplex else (Proceed(event.kind),)
        self._response_passed = event.end_of_stream
        response, body = self._answered(), event.body
        if response is not None:
            response.body(event)
            body = response.changed(event)
        if duplex:
            return chunks(event.kind, body, end_of_stream=event.end_of_stream)
        return (Proceed(event.kind, body=None if body == event.body else body),)

    def _answered(self) -> Response | None:
        """The answer, if it is one to a request that was routed."""
        if self.response is None and isinstance(self.verdict, Decision):
            self.response = Response(self._router.fleet, self.verdict, self._prompt_bytes)
        return self.response

    def _let_go(self, head: Head, resolved: ResolvedRequest, phase: Phase) -> Replies:
        """The headers' answer, and all of the body that was held."""
        self._head = None
        (decided,) = self._decide(Kind.REQUEST_HEADERS, resolved, phase)
        decision = decided.decision
        held = head.held
        if decision is not None and decision.changes_body:
            held = head.edited(decision)
        if phase is Phase.PASSED:
            self._prompt_bytes = _size(resolved)
        return (decided, *chunks(Kind.REQUEST_BODY, held, end_of_stream=phase is Phase.PASSED))

    def _decide(
        self, kind: Kind, resolved: ResolvedRequest, phase: Phase = Phase.ROUTED
    ) -> tuple[Proceed]:
        decision = self._router.decide(resolved)
        self.verdict = decision
        self._phase = phase
        reroute = kind is Kind.REQUEST_HEADERS
        # A list only where it is certainly read as one: in the other modes the header chooses the
        # host of an original-destination cluster, or NGINX's upstream, and both take one address.
        in_duplex = self._modes.request is BodyMode.DUPLEX
        return (
            Proceed(
                kind,
                decision.address,
                reroute,
                decision,
                decision.destination if in_duplex else decision.address,
                decision.requested,
                decision.model,
                self._ask(decision),
            ),
        )

    def _ask(self, decision: Decision) -> tuple[tuple[str, str], ...]:
        """The header that asks for a load report, unless the client has asked for one."""
        if not decision.reads_signals or not self._shown.response_headers:
            return ()
        self._asked = not self._request.wants_load_report
        return ((FORMAT_HEADER, FORMAT),) if self._asked else ()

    def _list_models(self, route: Route, *, anthropic: bool) -> Replies:
        self._anthropic = anthropic
        router = self._router
        listing = Listing(router.catalog, router.fleet.context_lengths, anthropic=anthropic)
        body = listing.one(route.stored_id) if route.stored_id else listing.all()
        self._phase = Phase.CLOSED
        self.verdict = Listed()
        headers = {"content-type": "application/json", **self._id_headers()}
        return (Immediate(200, headers, body, "models_listed"),)

    def _id_headers(self) -> dict[str, str]:
        return response_headers(self.request_id, anthropic=self._anthropic)


def _size(resolved: ResolvedRequest) -> int:
    """Bytes of the prompt, where all of it was looked at."""
    prompt = resolved.prompt
    return prompt.bytes if prompt is not None and prompt.is_complete else 0


def _not_to_be_retried(answer: Reply) -> Reply:
    """Take the second candidate out of the answer to a request with trailers.

    Envoy retries only what has one (the routes of envoy.yaml), and on a route with retries it
    sends the body of a request with trailers twice.
    """
    if not isinstance(answer, Proceed) or answer.decision is None:
        return answer
    return answer._replace(decision=answer.decision._replace(fallback=None))


def _with_body(answer: Proceed, body: bytes, *, complete: bool) -> Proceed:
    """The answer with another body than was shown.

    In BUFFERED mode Envoy answers 500 where `content-length` is not the new body's; in
    BUFFERED_PARTIAL it takes the header away and does not listen.
    """
    if not complete:
        return answer._replace(body=body, remove_headers=(_LENGTH,))
    return answer._replace(body=body, set_headers=(*answer.set_headers, (_LENGTH, str(len(body)))))


_GO_ON = (Proceed(Kind.REQUEST_BODY),)
_LEAVE_OUT = (Proceed(Kind.REQUEST_BODY, body=b""),)

_STEPS: dict[tuple[Phase, Kind], Callable[[Conversation, Event], Replies]] = {
    (Phase.OPENING, Kind.REQUEST_HEADERS): Conversation._on_request_headers,
    (Phase.OPENING, Kind.REQUEST_BODY): Conversation._on_body_alone,
    (Phase.OPENING, Kind.RESPONSE_HEADERS): Conversation._on_response_alone,
    (Phase.READING, Kind.REQUEST_BODY): Conversation._on_request_body,
    # Trailers in place of a body: it was empty.
    (Phase.READING, Kind.REQUEST_TRAILERS): Conversation._on_request_without_body,
    (Phase.WAITING, Kind.REQUEST_HEADERS): Conversation._ignore,
    (Phase.WAITING, Kind.REQUEST_BODY): Conversation._on_awaited_body,
    (Phase.WAITING, Kind.REQUEST_TRAILERS): Conversation._on_awaited_trailers,
    (Phase.HOLDING, Kind.REQUEST_HEADERS): Conversation._ignore,
    (Phase.HOLDING, Kind.REQUEST_BODY): Conversation._on_held_body,
    (Phase.HOLDING, Kind.REQUEST_TRAILERS): Conversation._on_held_trailers,
    (Phase.PASSING, Kind.REQUEST_HEADERS): Conversation._ignore,
    (Phase.PASSING, Kind.REQUEST_BODY): Conversation._on_body,
    (Phase.PASSING, Kind.REQUEST_TRAILERS): Conversation._on_trailers,
    (Phase.PASSED, Kind.REQUEST_HEADERS): Conversation._ignore,
    (Phase.PASSED, Kind.REQUEST_BODY): Conversation._ignore,
    (Phase.PASSED, Kind.REQUEST_TRAILERS): Conversation._ignore,
    (Phase.PASSING, Kind.RESPONSE_HEADERS): Conversation._on_response_headers,
    (Phase.PASSED, Kind.RESPONSE_HEADERS): Conversation._on_response_headers,
    (Phase.ROUTED, Kind.RESPONSE_HEADERS): Conversation._on_response_headers,
}
