"""The state of one conversation, and the decision that both halves of it share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from random import Random
from typing import NamedTuple

from extproc.core.conversation.events import (
    BodyMode,
    Event,
    Kind,
    LongerTimeout,
    Modes,
    Proceed,
    Replies,
)
from extproc.core.conversation.head import Head
from extproc.core.conversation.phase import Phase
from extproc.core.conversation.replies import decided
from extproc.core.conversation.request import Request
from extproc.core.conversation.response import Response
from extproc.core.conversation.verdict import Verdict
from extproc.core.fleet.load_report import FORMAT, FORMAT_HEADER, ResponseVisibility
from extproc.core.flow_control.flow_control import FlowControl
from extproc.core.flow_control.waiter import Waiter
from extproc.core.request.refusals import Refusal
from extproc.core.request.request_id import response_headers
from extproc.core.routing.decision import Decision
from extproc.core.routing.resolved_request import ResolvedRequest
from extproc.core.routing.router import Router

UNKNOWN_MODES = Modes()

Finish = Callable[[Proceed], Replies]
"""Returns all replies that are due with the one that has the decision."""

_SPARE_SECONDS = 5.0
"""Time that Envoy waits longer than the sidecar, which refuses the request then."""
_REPORT_REQUEST = ((FORMAT_HEADER, FORMAT),)


class Queued(NamedTuple):
    """A request that waits for room on an endpoint, and what to do with the decision."""

    waiter: Waiter
    kind: Kind
    phase: Phase
    finish: Finish


class Stream(ABC):
    """One ext_proc stream: the HTTP request, the verdict on it and its response.

    `Conversation` adds the transitions; the functions of each step take the stream.
    """

    __slots__ = (
        *("_keep_prefix", "anthropic", "asked_for_report", "flow", "head", "later"),
        *("modes", "names_modes", "pass_unknown", "phase", "prefix", "prompt_bytes", "queued"),
        *("refused_earlier", "request", "request_id", "response", "response_passed", "rng"),
        *("router", "send", "verdict", "visibility"),
    )

    request: Request
    """Set with the request's headers."""

    def __init__(
        self,
        router: Router,
        rng: Random,
        visibility: ResponseVisibility | None = None,
        *,
        pass_unknown: bool = False,
        keep_prefix: bool = False,
        flow: FlowControl | None = None,
    ) -> None:
        self.router = router
        self.flow = flow
        self.rng = rng
        self.visibility = visibility or ResponseVisibility()
        self.pass_unknown = pass_unknown
        self._keep_prefix = keep_prefix
        self.anthropic = False
        """True if the client expects Anthropic's shapes."""
        self.asked_for_report = False
        """True if the sidecar, not the client, asked the endpoint for a load report."""
        self.phase = Phase.OPENING
        self.modes = UNKNOWN_MODES
        self.names_modes = False
        """True if the peer says which modes it uses, as Envoy does."""
        self.queued: Queued | None = None
        """The request while it waits for room on an endpoint."""
        self.send: Callable[[Replies], None] | None = None
        """Gets the replies to a request that waits, once its outcome is known. The owner sets it
        then, because it makes a reference cycle."""
        self.later: list[Event] = []
        """Events that wait with it."""
        self.response_passed = False
        """True after the end of the response's body."""
        self.prompt_bytes = 0
        self.head: Head | None = None
        """The beginning of the body while a reply waits for it. A stream may live for hours."""
        self.refused_earlier = False
        """True if Envoy shows only the response: an earlier filter of Envoy refused the request."""
        self.request_id = ""
        """The id that Envoy gave the request; empty if there is none."""
        self.verdict: Verdict | None = None
        """The outcome for the request, once it is known."""
        self.response: Response | None = None
        """The endpoint's response, once Envoy showed a part of it."""
        self.prefix: str | None = None
        """The text that was hashed; kept only with `keep_prefix`."""

    def decide(
        self,
        kind: Kind,
        resolved: ResolvedRequest,
        phase: Phase = Phase.ROUTED,
        finish: Finish = lambda reply: (reply,),
        *,
        keeps_body: bool = True,
    ) -> Replies:
        """Decide the request, and return the replies, or let it wait. Raises Refusal.

        `keeps_body` means that `finish` can change the body, if Envoy shows it.
        """
        if self._keep_prefix:
            self.prefix = resolved.prefix
        spec = resolved.model.spec.flow_control
        if spec is None or self.flow is None:
            return finish(self.decided(self.router.decide(resolved), kind, phase))
        arrival = self.request.arrival(spec, resolved)
        outcome = self.flow.admit(resolved, arrival, self.released)
        if isinstance(outcome, Decision):
            return finish(self.decided(outcome, kind, phase))
        outcome.keeps_body = keeps_body
        self.phase = Phase.QUEUED
        self.queued = Queued(outcome, kind, phase, finish)
        return self.longer_timeout(outcome)

    def longer_timeout(self, waiter: Waiter) -> Replies:
        """Return the reply that makes Envoy wait longer; none if the gateway has no timeout.

        Envoy starts its own, short timeout with each event that it sends.
        """
        # In FULL_DUPLEX_STREAMED mode, Envoy waits without a timeout.
        if self.modes.request is BodyMode.DUPLEX or not self.names_modes:
            return ()
        return (LongerTimeout(waiter.deadline - waiter.at + _SPARE_SECONDS),)

    def decided(self, decision: Decision, kind: Kind, phase: Phase) -> Proceed:
        """Take the decision, and return the reply with it."""
        self.verdict = decision
        self.phase = phase
        if not self.visibility.response_headers:
            decision.lease.request = None  # nothing will show a retry
        # Only FULL_DUPLEX_STREAMED gateways read a list. In other modes the header chooses the
        # host of an original-destination cluster or NGINX's upstream, which take one address.
        lists = self.modes.request is BodyMode.DUPLEX
        return decided(kind, decision, self._report_request(decision), lists=lists)

    @abstractmethod
    def released(self, outcome: Decision | Refusal) -> None:
        """Take the outcome of a request that waited, and send the replies."""

    def body_head(self) -> Head:
        """Return the beginning of the body that the reply waits for."""
        if self.head is None:
            self.head = Head(self.request)
        return self.head

    def routed_response(self) -> Response | None:
        """Return the response to a routed request; None if the request was not routed."""
        if self.response is None and isinstance(self.verdict, Decision):
            self.response = Response(self.router.fleet, self.verdict, self.prompt_bytes)
        return self.response

    def id_headers(self) -> dict[str, str]:
        """Return the headers that carry the request's id in the sidecar's own responses."""
        return response_headers(self.request_id, anthropic=self.anthropic)

    def _report_request(self, decision: Decision) -> tuple[tuple[str, str], ...]:
        """Return the header that asks for a load report, unless the client sent one."""
        if not decision.reads_signals or not self.visibility.response_headers:
            return ()
        self.asked_for_report = not self.request.wants_load_report
        return _REPORT_REQUEST if self.asked_for_report else ()
