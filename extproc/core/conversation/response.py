"""The response to a routed request, as far as Envoy shows it.

The response headers name the endpoint that Envoy tried. A failure counts for its ejection
(`extproc.core.fleet.ejection`). If Envoy retried on another endpoint, the lease moves there. A load
report updates the endpoint's reading.

The body is read only if there was a prediction. Its first bytes show that the prompt is computed.
`usage` at its end gives the real cache hit and the size of the model's tokens.

A body passes unchanged, unless the operator wants responses to name the model as requests did
(`answerAsRequested`).
"""

from __future__ import annotations

from extproc.core.conversation.events import Event
from extproc.core.conversation.response_names import EVENTS, JSON, ResponseNames
from extproc.core.conversation.usage import Usage, UsageReader
from extproc.core.fleet.fleet import Fleet
from extproc.core.fleet.load_report import load_of
from extproc.core.fleet.outcome import Outcome
from extproc.core.routing.decision import Decision


class Response:
    """The response to one request; `close` ends it."""

    __slots__ = (
        *("_decision", "_fleet", "_names", "_prompt_bytes", "_reader"),
        *("keeps_name", "retried", "usage"),
    )

    def __init__(self, fleet: Fleet, decision: Decision, prompt_bytes: int) -> None:
        self._fleet = fleet
        self._decision = decision
        self._prompt_bytes = prompt_bytes
        """Bytes of the prompt; 0 if Envoy did not show all of it."""
        self._reader: UsageReader | None = None
        self._names: ResponseNames | None = None
        self.keeps_name = False
        """True if the servers' name stays, because Envoy does not show the body."""
        self.retried = False
        """True if another endpoint responded than the chosen one, whose cache was predicted."""
        self.usage: Usage | None = None
        """The server's token counts, after the end of a response with a prediction."""

    def headers(self, event: Event) -> None:
        """Read the response's head and Envoy's report of the endpoint."""
        decision, fleet = self._decision, self._fleet
        if event.served_by:
            self._record_outcome(event)
        served_by = event.served_by or decision.lease.endpoint.address
        fleet.served(decision.lease, served_by)
        if served_by != decision.address:
            self.retried = True
            if decision.response_id is not None:
                fleet.response_ids.move(decision.response_id, served_by)
        if event.outcome in (None, Outcome.SERVED):  # a failure is no latency
            decision.lease.begin()  # after the move, so that it counts for the serving endpoint
        if event.load_report is not None and decision.reads_signals:
            load = load_of(event.load_report)
            if load is not None:
                fleet.signals.record_load_report(decision.lease.endpoint.address, load)
        if decision.answer_as is not None and event.media_type in (EVENTS, JSON):
            self._names = ResponseNames(decision.answer_as, events=event.media_type == EVENTS)

    @property
    def renames(self) -> bool:
        """True if the body, when it is shown, gets another name for the model."""
        return self._names is not None

    def changed(self, event: Event) -> bytes:
        """Return a part of the body as the client gets it."""
        if self._names is None:
            return event.body
        return self._names.feed(event.body, end=event.end_of_stream)

    def rest(self) -> bytes:
        """Return the bytes that were held when trailers came instead of the body's end."""
        return b"" if self._names is None else self._names.feed(b"", end=True)

    def body(self, event: Event) -> None:
        """Read a part of the body."""
        if self._decision.prediction is None:
            return
        if event.body:
            if self._reader is None:
                self._reader = UsageReader()
            self._reader.feed(event.body)
            lease = self._decision.lease
            if lease.prefill is not None and self._reader.has_first_token(event.body):
                lease.finish_prefill()
        if event.end_of_stream:
            self.close()

    def close(self) -> None:
        """End the response, because Envoy shows nothing more of it. A second call does nothing."""
        reader, self._reader = self._reader, None
        prediction = self._decision.prediction
        # A prompt that Envoy did not show has no prediction.
        if reader is None or not prediction or not prediction.prompt_tokens:
            return
        self.usage = reader.usage()
        if self.usage is not None and self._prompt_bytes:
            sizes, tokens = self._fleet.signals.token_sizes, self.usage.prompt_tokens
            sizes.record(self._decision.model, self._prompt_bytes, tokens)

    def _record_outcome(self, event: Event) -> None:
        """Count the outcomes at the endpoints that Envoy tried."""
        ejection, decision, served_by = self._fleet.ejection, self._decision, event.served_by
        ejected = decision.ejected
        if served_by != decision.address:
            # With one attempt Envoy did not try the chosen endpoint, which it may not know. If
            # Envoy does not report attempts, only the fallback proves that it tried the chosen one.
            if event.attempts > 1 or (not event.attempts and served_by == decision.fallback):
                ejection.record(decision.address, Outcome.REPLACED, ejected)
            ejected = ejection.ejected.get(served_by)
        ejection.record(served_by, event.outcome, ejected)
