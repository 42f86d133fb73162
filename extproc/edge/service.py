"""The ext_proc service: a conversation for each stream."""

from __future__ import annotations

import logging
from random import Random
from time import perf_counter
from typing import Protocol

from extproc.adapters.logs import fields
from extproc.adapters.telemetry import Telemetry
from extproc.core.conversation import Conversation
from extproc.core.errors import Refusal
from extproc.core.orca import Shown
from extproc.core.router import Decision, Router
from extproc.edge.codec import decode, encode

log = logging.getLogger("extproc.requests")


class Stream(Protocol):
    """One stream of messages from and to Envoy, whatever carries it."""

    async def read(self) -> bytes | None:
        """The next message; None at the end."""

    async def write(self, message: bytes) -> None:
        """Sends an answer."""


class ExternalProcessor:
    """Serves streams from one router."""

    def __init__(self, router: Router, telemetry: Telemetry, rng: Random) -> None:
        self._router = router
        self._telemetry = telemetry
        self._rng = rng
        self._shown = Shown()

    async def process(self, stream: Stream) -> None:
        """Answers a stream to its end. Raises protobuf's DecodeError for a garbled message."""
        conversation = Conversation(self._router, self._rng, self._shown)
        try:
            while (message := await stream.read()) is not None:
                for answer in self._answers(conversation, message):
                    await stream.write(answer)
        finally:
            # Also on cancellation, which is how an aborted request shows here.
            conversation.close()
            self._report(conversation)

    def _answers(self, conversation: Conversation, message: bytes) -> list[bytes]:
        started = perf_counter()
        undecided = conversation.verdict is None
        encoded = [encode(answer) for answer in conversation.receive(decode(message))]
        if undecided and conversation.verdict is not None:
            self._telemetry.decided(conversation.verdict, perf_counter() - started)
            _log(conversation)
        return encoded

    def _report(self, conversation: Conversation) -> None:
        """Counts what is known at the end."""
        verdict, usage = conversation.verdict, conversation.usage
        if verdict is None:
            self._telemetry.aborted()
        elif isinstance(verdict, Decision) and usage is not None:
            prediction = None if conversation.retried else verdict.prediction
            self._telemetry.answered(verdict.model, usage, prediction)


def _log(conversation: Conversation) -> None:
    verdict = conversation.verdict
    if isinstance(verdict, Refusal):
        log.info(
            "refused",
            extra=fields(status=verdict.status, code=verdict.code, why=verdict.message),
        )
    elif isinstance(verdict, Decision) and log.isEnabledFor(logging.DEBUG):
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
            ),
        )
