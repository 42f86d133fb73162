"""The ext_proc service: a conversation for each stream, from bytes to bytes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from random import Random
from time import perf_counter
from types import MappingProxyType

from extproc.adapters.observability.log_sampler import LogSampler
from extproc.adapters.observability.logs import fields
from extproc.adapters.observability.telemetry import Telemetry
from extproc.adapters.tracing.port import DecisionSpan, Metadata, Tracing
from extproc.core.conversation.events import Kind, Replies
from extproc.core.conversation.state_machine import Conversation
from extproc.core.conversation.verdict import Verdict
from extproc.core.fleet.load_report import ResponseVisibility
from extproc.core.flow_control.flow_control import FlowControl
from extproc.core.request.refusals import Refusal
from extproc.core.routing.decision import Decision
from extproc.core.routing.router import Router
from extproc.edge.ext_proc.codec import decode, encode

log = logging.getLogger("extproc.requests")

_WARNED_MODELS = 1024
_NO_METADATA: Mapping[bytes, bytes] = MappingProxyType({})

Send = Callable[[Sequence[bytes]], None]
"""Function that sends messages to Envoy at any time, not only in response to one."""


class ExternalProcessor:
    """The ext_proc service: it opens a session for each stream. All sessions share one router."""

    def __init__(
        self,
        router: Router,
        telemetry: Telemetry,
        rng: Random,
        *,
        log_prompts: bool = False,
        sampler: LogSampler | None = None,
        pass_unknown: bool = False,
        flow: FlowControl | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        """Requests of models with flow control wait in `flow`; without it, none waits."""
        self._router = router
        self._flow = flow
        self._telemetry = telemetry
        self._rng = rng
        self._sampler = sampler or LogSampler()
        self._shown = ResponseVisibility()
        self._log_prompts = log_prompts
        self._pass_unknown = pass_unknown
        self._tracing = tracing

    def open(self, send: Send, metadata: Metadata = _NO_METADATA) -> Session:
        """Return the session of a new stream.

        `send` sends messages to Envoy at any time. `metadata` is that of Envoy's call.
        """
        conversation = Conversation(
            self._router,
            self._rng,
            self._shown,
            pass_unknown=self._pass_unknown,
            keep_prefix=self._log_prompts,
            flow=self._flow,
        )
        span = None if self._tracing is None else self._tracing.begin(metadata)
        return Session(conversation, self._telemetry, self._sampler, send, span)


class Session:
    """The messages of one stream from Envoy, over any transport.

    The transport must close it when the stream ends for any reason: this returns the lease.
    """

    __slots__ = ("_conversation", "_sampler", "_send", "_span", "_telemetry")

    def __init__(
        self,
        conversation: Conversation,
        telemetry: Telemetry,
        sampler: LogSampler,
        send: Send,
        span: DecisionSpan | None = None,
    ) -> None:
        self._conversation = conversation
        self._send = send
        self._telemetry = telemetry
        self._sampler = sampler
        self._span = span

    @property
    def owes_replies(self) -> bool:
        """True if a request waits for room, and its gateway reads replies after its last message.

        Envoy ends its half of the stream only if its client has left.
        """
        conversation = self._conversation
        return conversation.queued is not None and not conversation.names_modes

    def receive(self, message: bytes) -> list[bytes]:
        """Return the replies to a message. Raises protobuf's DecodeError for a garbled one."""
        conversation = self._conversation
        started = perf_counter()
        undecided = conversation.verdict is None
        event = decode(message)
        if self._span is not None and event.kind is Kind.REQUEST_HEADERS:
            self._span.read(event.headers)
        encoded = [encode(reply) for reply in conversation.receive(event)]
        if undecided and conversation.verdict is not None:
            self._record(conversation.verdict, perf_counter() - started)
        elif conversation.queued is not None:
            conversation.send = self._released
        return encoded

    def _released(self, replies: Replies) -> None:
        """Send the replies to a request that waited for room on an endpoint."""
        conversation = self._conversation
        started = perf_counter()
        encoded = [encode(reply) for reply in replies]
        if conversation.verdict is not None:
            self._record(conversation.verdict, perf_counter() - started)
        self._send(encoded)

    def _record(self, verdict: Verdict, seconds: float) -> None:
        """Report a verdict and the time that it took."""
        self._telemetry.decided(verdict, seconds)
        if self._span is not None:
            self._span.decided(verdict, self._conversation.request_id)
        _log(self._conversation, self._sampler)

    def close(self) -> None:
        """End the conversation and record its metrics. Must be called once."""
        conversation = self._conversation
        conversation.close()
        verdict, response = conversation.verdict, conversation.response
        if isinstance(verdict, Decision) and response is not None and response.keeps_name:
            _warn_of_kept_name(verdict.model)
        if verdict is None:
            if not conversation.refused_earlier:
                self._telemetry.aborted()
        elif isinstance(verdict, Decision) and response is not None and response.usage is not None:
            prediction = None if response.retried else verdict.prediction
            self._telemetry.answered(verdict.model, response.usage, prediction)


@lru_cache(_WARNED_MODELS)
def _warn_of_kept_name(model: str) -> None:
    """Warn once for each model."""
    log.warning(
        "answerAsRequested has no effect: Envoy does not show response bodies",
        extra=fields(model=model),
    )


def _log(conversation: Conversation, sampler: LogSampler) -> None:
    verdict = conversation.verdict
    if isinstance(verdict, Refusal):
        # Any client can cause refusals. The metrics also count those that are not logged.
        suppressed = sampler.admit(verdict.code)
        if suppressed is None:
            return
        earlier = {"suppressed": suppressed} if suppressed else {}
        log.info(
            "refused",
            extra=fields(
                status=verdict.status,
                code=verdict.code,
                why=verdict.message,
                **earlier,
                **_identified(conversation),
            ),
        )
    elif isinstance(verdict, Decision) and log.isEnabledFor(logging.DEBUG):
        prompt: dict[str, object] = {}
        if conversation.prefix is not None:
            prompt["prefix"] = conversation.prefix
        hit = verdict.prediction and {"predicted_hit": round(verdict.prediction.hit, 4)}
        log.debug(
            "routed",
            extra=fields(
                model=verdict.model,
                adapter=verdict.adapter,
                strategy=verdict.strategy,
                endpoint=verdict.address,
                reason=verdict.reason,
                inflight=verdict.inflight,
                hops=verdict.hops,
                **(hit or {}),
                **prompt,
                **_identified(conversation),
            ),
        )


def _identified(conversation: Conversation) -> dict[str, str]:
    request_id = conversation.request_id
    return {"request_id": request_id} if request_id else {}
