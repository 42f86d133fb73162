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
    ROUTED   the decision is made, and nothing more of the request is asked for
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
    OPENING -> ROUTED                         no body, or none that is shown
    OPENING -> WAITING -> ROUTED              bodies that come ahead of the headers' answer
    OPENING -> HOLDING -> PASSING -> PASSED   bodies in pieces, to be streamed back
    any     -> CLOSED

The *route* must change in the answer to the headers: for a body larger than
Envoy's buffer, a route change in the body's answer comes too late. So where the
headers must be answered before the body is seen, that answer carries a provisional
target, and the body's answer only overwrites the target header, which chooses the
host within the route. Where the headers' answer can wait, it carries the decision.

Where the servers know the model by another name, the body's `model` is changed to it
in the same answer that lets the body go: as far as the body is shown, and where the
value of `model` was shown whole. A body that is not shown goes on as it is.

What Envoy shows of the endpoint's answer goes on as it is, and tells things
(`extproc.core.response`). The stream's end releases the lease, however it comes: with
Envoy's `response_trailer_mode: SEND` the stream lives exactly as long as the request.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from random import Random

from extproc.core.errors import Refusal, UnknownPath, UnsupportedBodyMode
from extproc.core.events import Answer, BodyMode, Event, Immediate, Kind, Modes, Proceed, chunks
from extproc.core.head import Head
from extproc.core.orca import FORMAT, FORMAT_HEADER, REPORT_HEADER, Shown
from extproc.core.paths import INFERENCE_PATHS, MODELS_PATH, without_query
from extproc.core.request import Request, header_text
from extproc.core.response import Response
from extproc.core.router import Decision, Placement, Router

__all__ = ["Conversation", "Event", "Kind", "Listed", "Verdict"]

Answers = tuple[Answer, ...]

_UNTOLD = Modes()
_LENGTH = "content-length"


@dataclass(frozen=True)
class Listed:
    """The verdict on a request for the list of models."""


Verdict = Decision | Refusal | Listed


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
        *("_asked", "_head", "_modes", "_phase", "_prompt_bytes", "_request", "_response_passed"),
        *("_rng", "_router", "_shown", "response", "verdict"),
    )

    _request: Request
    """From the request's headers on."""

    def __init__(self, router: Router, rng: Random, shown: Shown | None = None) -> None:
        self._router = router
        self._rng = rng
        self._shown = shown or Shown()
        self._asked = False
        self._phase = Phase.OPENING
        self._modes = _UNTOLD
        self._response_passed = False
        self._prompt_bytes = 0
        self._head: Head | None = None
        """While we wait only: a stream may live for hours, and nobody needs the head then."""
        self.verdict: Verdict | None = None
        """What became of the request, once that is known."""
        self.response: Response | None = None
        """The endpoint's answer, once something of it was shown."""

    def receive(self, event: Event) -> Answers:
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
            return (Immediate(refusal.status, refusal.headers, refusal.body(), refusal.code),)

    def close(self) -> None:
        """The stream has ended: gives the lease back. Again, it does nothing."""
        self._phase = Phase.CLOSED
        if isinstance(self.verdict, Decision):
            if self.response is not None:
                self.response.over()
            self.verdict.lease.release()

    def _on_request_headers(self, event: Event) -> Answers:
        path = without_query(header_text(event.headers, ":path"))
        method = header_text(event.headers, ":method")
        if path == MODELS_PATH and method == "GET":
            return self._list_models()
        api = INFERENCE_PATHS.get(path)
        if api is None:
            raise UnknownPath(method, path)
        self._request = request = Request(self._router, api, event.headers, event.subset)
        mode = self._modes.request
        if event.end_of_stream:
            return self._decide(event.kind, request.place(b"", complete=True))
        if mode is BodyMode.BUFFERED:
            self._phase = Phase.READING
            return (Proceed(event.kind, request.provisional_target(self._rng), reroute=True),)
        if mode is BodyMode.AHEAD or mode is BodyMode.DUPLEX:
            self._phase = Phase.WAITING if mode is BodyMode.AHEAD else Phase.HOLDING
            return ()
        if mode is BodyMode.NONE:
            return self._decide(event.kind, request.place_unseen())
        raise UnsupportedBodyMode()

    def _on_body_alone(self, event: Event) -> Answers:
        """The headers were not shown, so there is no answer to them that could wait."""
        if self._modes.request is not BodyMode.BUFFERED:
            raise UnsupportedBodyMode()
        self._request = Request(self._router)
        return self._on_request_body(event)

    def _on_request_body(self, event: Event) -> Answers:
        request, body = self._request, event.body
        placement = request.place(body, complete=event.end_of_stream)
        (answer,) = self._decide(event.kind, placement)
        if event.end_of_stream:
            self._prompt_bytes = _size(placement)
        if placement.rename is not None:
            renamed = request.renamed(body, placement.rename)
            if renamed != body:
                answer = _with_body(answer, renamed, complete=event.end_of_stream)
        return (answer,)

    def _on_request_without_body(self, event: Event) -> Answers:
        return self._decide(event.kind, self._request.place(b"", complete=True))

    def _on_awaited_body(self, event: Event) -> Answers:
        head = self._begun()
        if event.end_of_stream:
            placement = head.end(event.body)
            self._prompt_bytes = _size(placement)
            return self._let_on(head, placement, head.parts + 1)
        early = head.add(event.body)
        return () if early is None else self._let_on(head, early, head.parts)

    def _on_awaited_trailers(self, event: Event) -> Answers:
        head = self._begun()
        decided, *parts = self._let_on(head, head.end(), head.parts)
        return (_not_to_be_retried(decided), *parts, Proceed(event.kind))

    def _let_on(self, head: Head, placement: Placement, parts: int) -> Answers:
        """The headers' answer, and one for each part of the body that waits for it."""
        self._head = None
        decided = self._decide(Kind.REQUEST_HEADERS, placement)
        if placement.rename is None:
            return decided + _GO_ON * parts
        # All goes in place of the first part, and nothing in place of the others.
        first = Proceed(Kind.REQUEST_BODY, body=head.renamed(placement.rename))
        return (*decided, first, *_LEAVE_OUT * (parts - 1))

    def _on_held_body(self, event: Event) -> Answers:
        head = self._begun()
        if event.end_of_stream:
            return self._let_go(head, head.end(event.body), Phase.PASSED)
        early = head.add(event.body)
        return () if early is None else self._let_go(head, early, Phase.PASSING)

    def _on_held_trailers(self, event: Event) -> Answers:
        head = self._begun()
        released = self._let_go(head, head.end(), Phase.PASSING)
        return (*released, *self._on_trailers(event))

    def _begun(self) -> Head:
        """What has come of the body that we wait for."""
        if self._head is None:
            self._head = Head(self._request)
        return self._head

    def _on_body(self, event: Event) -> Answers:
        if event.end_of_stream:
            self._phase = Phase.PASSED
        return chunks(event.kind, event.body, end_of_stream=event.end_of_stream)

    def _on_trailers(self, event: Event) -> Answers:
        self._phase = Phase.PASSED
        return (Proceed(event.kind),)

    def _ignore(self, _: Event) -> Answers:
        return ()

    def _on_response_headers(self, event: Event) -> Answers:
        self._shown.response_headers = True
        response = self._answered()
        if response is not None:
            response.headers(event)
        # One that is empty is ours to take away, too.
        ours = event.load_report is not None and self._asked
        return (Proceed(event.kind, remove_headers=(REPORT_HEADER,) if ours else ()),)

    def _go_on(self, event: Event) -> Answers:
        if event.kind is Kind.RESPONSE_BODY:
            return self._pass_response(event)
        return (Proceed(event.kind),)

    def _pass_response(self, event: Event) -> Answers:
        duplex = self._modes.response is BodyMode.DUPLEX
        if self._response_passed:
            return () if duplex else (Proceed(event.kind),)
        self._response_passed = event.end_of_stream
        response = self._answered()
        if response is not None:
            response.body(event)
        if not duplex:
            return (Proceed(event.kind),)
        return chunks(event.kind, event.body, end_of_stream=event.end_of_stream)

    def _answered(self) -> Response | None:
        """The answer, if it is one to a request that was routed."""
        if self.response is None and isinstance(self.verdict, Decision):
            self.response = Response(self._router, self.verdict, self._prompt_bytes)
        return self.response

    def _let_go(self, head: Head, placement: Placement, phase: Phase) -> Answers:
        """The headers' answer, and all of the body that was held."""
        rename = placement.rename
        held = head.held if rename is None else head.renamed(rename)
        self._head = None
        decided = self._decide(Kind.REQUEST_HEADERS, placement, phase)
        if phase is Phase.PASSED:
            self._prompt_bytes = _size(placement)
        return (*decided, *chunks(Kind.REQUEST_BODY, held, end_of_stream=phase is Phase.PASSED))

    def _decide(
        self, kind: Kind, placement: Placement, phase: Phase = Phase.ROUTED
    ) -> tuple[Proceed]:
        decision = self._router.decide(placement)
        self.verdict = decision
        self._phase = phase
        reroute = kind is Kind.REQUEST_HEADERS
        destination = decision.destination if self._modes.request is BodyMode.DUPLEX else ""
        return (
            Proceed(kind, decision.address, reroute, decision, destination, self._ask(decision)),
        )

    def _ask(self, decision: Decision) -> tuple[tuple[str, str], ...]:
        """The header that asks for a load report, unless the client has asked for one."""
        if not decision.reads_signals or not self._shown.response_headers:
            return ()
        self._asked = not self._request.wants_load_report
        return ((FORMAT_HEADER, FORMAT),) if self._asked else ()

    def _list_models(self) -> Answers:
        self._phase = Phase.CLOSED
        self.verdict = Listed()
        headers = {"content-type": "application/json"}
        return (Immediate(200, headers, self._router.catalog.listing(), "models_listed"),)


def _size(placement: Placement) -> int:
    """Bytes of the prompt, where all of it was looked at."""
    prompt = placement.prompt
    return prompt.bytes if prompt is not None and prompt.whole else 0


def _not_to_be_retried(answer: Answer) -> Answer:
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

_STEPS: dict[tuple[Phase, Kind], Callable[[Conversation, Event], Answers]] = {
    (Phase.OPENING, Kind.REQUEST_HEADERS): Conversation._on_request_headers,
    (Phase.OPENING, Kind.REQUEST_BODY): Conversation._on_body_alone,
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
