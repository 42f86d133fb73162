"""The answer to a routed request, as far as Envoy shows it.

The response headers name the endpoint that Envoy asked. If it failed, it is ejected
(`extproc.core.fleet.ejection`). If Envoy retried on another endpoint, the lease moves there. A
report counts as a reading of the endpoint's metrics.

Its body, in any mode, tells when the prompt is computed, by its first bytes, and at its end by
`usage` how true the prediction was and how long the model's tokens are. It is of interest only
where there was a prediction.

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
    """Of one request; to be told when it is `over`."""

    __slots__ = (
        *("_decision", "_fleet", "_names", "_prompt_bytes", "_reader"),
        *("keeps_name", "retried", "usage"),
    )

    def __init__(self, fleet: Fleet, decision: Decision, prompt_bytes: int) -> None:
        self._fleet = fleet
        self._decision = decision
        self._prompt_bytes = prompt_bytes
        """0: not all of the prompt was seen."""
        self._reader: UsageReader | None = None
        self._names: ResponseNames | None = None
        self.keeps_name = False
        """True if the servers' name stays, because Envoy does not show the body."""
        self.retried = False
        """Whether another endpoint has answered than the chosen one, which the prediction is of."""
        self.usage: Usage | None = None
        """What it said of its prompt, once it is over, if that was predicted and shown."""

    def headers(self, event: Event) -> None:
        """Its head, with what Envoy tells of the endpoint."""
        decision, fleet = self._decision, self._fleet
        if event.served_by:
            self._judge(event)
        if event.served_by not in ("", decision.address):
            decision.lease.move(fleet.endpoint(decision.model, event.served_by))
            self.retried = True
            if decision.response_id is not None:
                fleet.response_ids.move(decision.response_id, event.served_by)
        if event.load_report is not None and decision.reads_signals:
            load = load_of(event.load_report)
            if load is not None:
                fleet.signals.record_load_report(decision.address, load)
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
            if lease.prefill is not None and self._reader.speaks(event.body):
                lease.finish_prefill()
        if event.end_of_stream:
            self.close()

    def close(self) -> None:
        """Nothing more of it will be shown. Again, it does nothing."""
        reader, self._reader = self._reader, None
        prediction = self._decision.prediction
        # Of a prompt that was not seen nothing was predicted.
        if reader is None or not prediction or not prediction.prompt_tokens:
            return
        self.usage = reader.usage()
        if self.usage is not None and self._prompt_bytes:
            sizes, tokens = self._fleet.token_sizes, self.usage.prompt_tokens
            sizes.record(self._decision.model, self._prompt_bytes, tokens)

    def _judge(self, event: Event) -> None:
        """Counts how the endpoints did that were asked."""
        ejection, decision, served_by = self._fleet.ejection, self._decision, event.served_by
        ejected = decision.ejected
        if served_by != decision.address:
            # With one attempt Envoy has not asked the chosen one, which it may not know. Where it
            # does not tell, only the fallback is sure to have come after it.
            if event.attempts > 1 or (not event.attempts and served_by == decision.fallback):
                ejection.record(decision.address, Outcome.REPLACED, ejected)
            ejected = ejection.ejected.get(served_by)
        ejection.record(served_by, event.outcome, ejected)
