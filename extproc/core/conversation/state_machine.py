"""One ext_proc conversation: Envoy's events in, replies out.

Theory of operation
-------------------
Envoy opens one stream for each HTTP request, and sends an event for each part of it that its
processing mode shows. A peer may send any event in any phase, so the table below is total: an
event without a row gets a reply that changes nothing.

    OPENING -> READING -> ROUTED              the head in one event, after the headers
    OPENING -> ROUTED                         no body, or none that is shown or needed
    OPENING -> WAITING -> ROUTED              bodies that come before the reply to the headers
    OPENING -> WAITING -> PASSED              the same, with trailers
    OPENING -> HOLDING -> PASSING -> PASSED   bodies in pieces, to be streamed back
    OPENING -> PASSING -> PASSED              the same, where the headers were sufficient
    any of the first four -> QUEUED           no endpoint has room; then on, as if decided at once
    any     -> CLOSED

`Phase` describes each phase. From PASSING on, the conversation holds the decision's lease. The
stream's end always releases it. With Envoy's `response_trailer_mode: SEND` the
stream lives exactly as long as the request.

Queue. With flow control, a request may wait for room after the event that resolves it. That event
and those that arrive meanwhile only get a longer timeout. They wait with the request, and are
handled in their order after the decision. Then `send` gets all replies that are due.

Replies. Every event gets exactly one reply of the same kind, or, once, an immediate response that
ends the HTTP request. After that there are no more replies. Two body modes differ:

- STREAMED, without waiting for the reply to the headers: that reply waits for the body, and each
  part of the body waits with it. So an event may have no reply yet, and a later one several.
- FULL_DUPLEX_STREAMED: the parts are streamed back. The reply to the headers comes once, then each
  byte of the body once and in order, in any number of pieces, then the trailers. Events after the
  body's end are ignored, because Envoy may send the last piece twice (its issue 46237).

Trailers. On a route with retries, Envoy sends the body of a request with trailers twice if the body
passes in replies of its own. So the reply to the headers contains the whole body if the body has
arrived and Envoy has not marked its end, or if the trailers have arrived. It is the last reply to
the request. STREAMED bodies do not wait for the trailers, because Envoy sends those only after the
replies to the body. The body of a request that was decided before its end passes in parts, also if
trailers follow.

Routes. The *route* must change in the reply to the headers: for a body larger than Envoy's buffer,
a route change in the reply to the body comes too late. If Envoy wants the reply to the headers
before it shows the body, that reply carries a provisional target. The reply to the body overwrites
only the target header, which chooses the host within the route. If the reply to the headers can
wait, it carries the decision.

Unknown paths. If the operator wants it, a request to an unknown path passes undecided, through the
same phases. The sidecar removes the headers that choose an endpoint.

Names. If the servers know the model by another name, the reply that releases the body changes its
`model`. This needs a body that Envoy shows, with the whole value of `model` in the shown part.

Responses. What Envoy shows of the endpoint's response passes unchanged, except for names, and is
read (`extproc.core.conversation.response`).
"""

from __future__ import annotations

from collections.abc import Callable

from extproc.core.conversation.body_steps import (
    on_awaited_body,
    on_awaited_trailers,
    on_body,
    on_body_alone,
    on_held_body,
    on_held_trailers,
    on_request_body,
    on_request_without_body,
    on_trailers,
)
from extproc.core.conversation.events import Event, Kind, Proceed, Replies
from extproc.core.conversation.headers_step import on_request_headers
from extproc.core.conversation.phase import Phase
from extproc.core.conversation.queued import (
    leave,
    on_event_while_queued,
    on_response_while_queued,
)
from extproc.core.conversation.replies import refused
from extproc.core.conversation.response_steps import (
    on_response_alone,
    on_response_body,
    on_response_headers,
    on_response_trailers,
)
from extproc.core.conversation.stream import Stream
from extproc.core.request.refusals import Refusal
from extproc.core.routing.decision import Decision


class Conversation(Stream):
    """The state machine of one stream: `receive` takes its events, `close` its end."""

    __slots__ = ()

    def receive(self, event: Event) -> Replies:
        """Return the replies to send, in this order; none if none is due, or none yet."""
        if self.phase is Phase.CLOSED or event.kind is Kind.UNKNOWN:
            return ()
        if event.modes is not None:
            self.modes = event.modes
            self.names_modes = True
        step = _STEPS.get((self.phase, event.kind)) or _IN_ANY_PHASE.get(event.kind, _continue)
        try:
            return step(self, event)
        except Refusal as refusal:
            return self._refuse(refusal)

    def close(self) -> None:
        """Release the lease, because the stream has ended. A second call does nothing."""
        self.phase = Phase.CLOSED
        leave(self)
        if isinstance(self.verdict, Decision):
            if self.response is not None:
                self.response.close()
            self.verdict.lease.release()

    def released(self, outcome: Decision | Refusal) -> None:
        """Send the replies to a request that waited, and to the events that waited with it."""
        queued, self.queued = self.queued, None
        send, self.send = self.send, None
        if queued is None or send is None:
            return
        later, self.later = self.later, []
        if isinstance(outcome, Refusal):
            send(self._refuse(outcome))
            return
        replies = list(queued.finish(self.decided(outcome, queued.kind, queued.phase)))
        for event in later:
            replies += self.receive(event)
        send(tuple(replies))

    def _refuse(self, refusal: Refusal) -> Replies:
        self.phase = Phase.CLOSED
        self.verdict = refusal
        # The traceback refers to this conversation and to the body, which would stay in memory
        # until the garbage collector finds the cycle.
        refusal.__traceback__ = refusal.__cause__ = refusal.__context__ = None
        body = refusal.body(self.request_id, anthropic=self.anthropic)
        return (refused(refusal, self.id_headers(), body),)


def _ignore(_stream: Stream, _event: Event) -> Replies:
    return ()


def _continue(_stream: Stream, event: Event) -> Replies:
    return (Proceed(event.kind),)


_Step = Callable[[Stream, Event], Replies]

_STEPS: dict[tuple[Phase, Kind], _Step] = {
    (Phase.OPENING, Kind.REQUEST_HEADERS): on_request_headers,
    (Phase.OPENING, Kind.REQUEST_BODY): on_body_alone,
    (Phase.OPENING, Kind.RESPONSE_HEADERS): on_response_alone,
    (Phase.READING, Kind.REQUEST_BODY): on_request_body,
    # Trailers without a body: it was empty.
    (Phase.READING, Kind.REQUEST_TRAILERS): on_request_without_body,
    (Phase.WAITING, Kind.REQUEST_HEADERS): _ignore,
    (Phase.WAITING, Kind.REQUEST_BODY): on_awaited_body,
    (Phase.WAITING, Kind.REQUEST_TRAILERS): on_awaited_trailers,
    (Phase.HOLDING, Kind.REQUEST_HEADERS): _ignore,
    (Phase.HOLDING, Kind.REQUEST_BODY): on_held_body,
    (Phase.HOLDING, Kind.REQUEST_TRAILERS): on_held_trailers,
    (Phase.QUEUED, Kind.REQUEST_HEADERS): _ignore,
    (Phase.QUEUED, Kind.REQUEST_BODY): on_event_while_queued,
    (Phase.QUEUED, Kind.REQUEST_TRAILERS): on_event_while_queued,
    (Phase.QUEUED, Kind.RESPONSE_HEADERS): on_response_while_queued,
    (Phase.PASSING, Kind.REQUEST_HEADERS): _ignore,
    (Phase.PASSING, Kind.REQUEST_BODY): on_body,
    (Phase.PASSING, Kind.REQUEST_TRAILERS): on_trailers,
    (Phase.PASSED, Kind.REQUEST_HEADERS): _ignore,
    (Phase.PASSED, Kind.REQUEST_BODY): _ignore,
    (Phase.PASSED, Kind.REQUEST_TRAILERS): _ignore,
    (Phase.PASSING, Kind.RESPONSE_HEADERS): on_response_headers,
    (Phase.PASSED, Kind.RESPONSE_HEADERS): on_response_headers,
    (Phase.ROUTED, Kind.RESPONSE_HEADERS): on_response_headers,
}

_IN_ANY_PHASE: dict[Kind, _Step] = {
    Kind.RESPONSE_BODY: on_response_body,
    Kind.RESPONSE_TRAILERS: on_response_trailers,
}
"""The steps for events that have no row in `_STEPS`."""
