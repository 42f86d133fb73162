"""One request in flight: turns the events of its connection into a response or a failure."""

from __future__ import annotations

import asyncio

from extproc.lab.load.failure import Failure, of_status
from extproc.lab.load.response import Response
from extproc.lab.load.sse import Scanner

_OK = 200
_MAX_BODY_BYTES = 64 * 2**20
"""Largest response without streaming."""

LOST = ("connection closed", "connection reset", "connection failed")
"""Kinds of failure that mean a lost connection."""


class Exchange:
    """The progress of a request; `failure` and `answer` are final once `over` is done."""

    __slots__ = (
        "_body", "_scanner", "_status",
        "answer", "endpoint", "failure", "over", "sent", "streamed", "touched",
    )  # fmt: skip

    def __init__(self, answer: Response, over: asyncio.Future[None]) -> None:
        self._scanner: Scanner | None = None
        self._status = 0
        self._body = bytearray()
        self.answer = answer
        self.over = over
        self.failure: Failure | None = None
        self.endpoint = ""
        """Endpoint that the server names."""
        self.sent = 0.0
        self.touched = False
        """True once a byte has arrived."""
        self.streamed = False

    def head(self, status: int, event_stream: bool, endpoint: str) -> None:
        """Process the response headers."""
        self._status = status
        self.endpoint = endpoint
        self.streamed = event_stream
        self._scanner = Scanner() if event_stream and status == _OK else None

    def body(self, data: bytes, now: float) -> None:
        """Process a part of the response body. Raises ValueError if the body is too large."""
        if self._scanner is not None:
            for event in self._scanner.feed(data):
                self.answer.event(event, now)
            return
        self._body += data
        if len(self._body) > _MAX_BODY_BYTES:
            raise ValueError(f"the response has more than {_MAX_BODY_BYTES} bytes")

    def end(self, now: float) -> None:
        """Process the regular end of the response."""
        if self._status != _OK:
            self._finish(of_status(self._status, bytes(self._body)))
            return
        if self._scanner is None:
            self.answer.whole(bytes(self._body), now)
        else:
            for event in self._scanner.end():
                self.answer.event(event, now)
        self._finish(self.answer.verdict())

    def fail(self, failure: Failure) -> None:
        """End the exchange without a complete response."""
        if self.touched and failure.kind in LOST:
            tokens = self.answer.tokens
            failure = Failure("cut off", f"{failure.message} (after {tokens} events with tokens)")
        self._finish(failure)

    def retry(self, over: asyncio.Future[None]) -> None:
        """Prepare a second attempt; the first one received nothing."""
        self.over = over
        self.failure = None

    def _finish(self, failure: Failure | None) -> None:
        if not self.over.done():
            self.failure = failure
            self.over.set_result(None)
