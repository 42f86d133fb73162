"""One request under way: puts what the connection tells together to an answer or a failure."""

from __future__ import annotations

import asyncio

from extproc.lab.load.failure import Failure, of_refusal
from extproc.lab.load.response import Response
from extproc.lab.load.sse import Scanner

_OK = 200
_MAX_BODY_BYTES = 64 * 2**20
"""Of an answer that is not streamed."""

LOST = ("connection closed", "connection reset", "connection failed")
"""Kinds of failure that say nothing but that there is no connection any more."""


class Exchange:
    """What has come of a request so far; `failure` and `answer` are final when `over` is done."""

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
        """By the name that the server gives it."""
        self.sent = 0.0
        self.touched = False
        """Whether anything came back."""
        self.streamed = False

    def head(self, status: int, event_stream: bool, endpoint: str) -> None:
        """The answer begins."""
        self._status = status
        self.endpoint = endpoint
        self.streamed = event_stream
        self._scanner = Scanner() if event_stream and status == _OK else None

    def body(self, data: bytes, now: float) -> None:
        """Bytes of the answer. Raises ValueError where they are too many."""
        if self._scanner is not None:
            for event in self._scanner.feed(data):
                self.answer.event(event, now)
            return
        self._body += data
        if len(self._body) > _MAX_BODY_BYTES:
            raise ValueError("an answer without an end")

    def end(self, now: float) -> None:
        """The answer has ended as it should."""
        if self._status != _OK:
            self._finish(of_refusal(self._status, bytes(self._body)))
            return
        if self._scanner is None:
            self.answer.whole(bytes(self._body), now)
        else:
            for event in self._scanner.end():
                self.answer.event(event, now)
        self._finish(self.answer.verdict())

    def fail(self, failure: Failure) -> None:
        """There will be no whole answer."""
        if self.touched and failure.kind in LOST:
            tokens = self.answer.tokens
            failure = Failure("cut off", f"{failure.message} (after {tokens} events with tokens)")
        self._finish(failure)

    def again(self, over: asyncio.Future[None]) -> None:
        """It is asked once more; nothing had come of it."""
        self.over = over
        self.failure = None

    def _finish(self, failure: Failure | None) -> None:
        if not self.over.done():
            self.failure = failure
            self.over.set_result(None)
