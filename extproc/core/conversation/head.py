"""The beginning of a body, kept back until a decision can be made on it.

Where the answer to a request's headers may wait for the body (STREAMED without waiting for it,
FULL_DUPLEX_STREAMED), the request stands still meanwhile, so we wait for no more than a
decision needs. A client that sends a byte at a time must not have the head read at every
one: it is read when it has doubled, which costs no more than reading it twice.
"""

from __future__ import annotations

from extproc.core.conversation.request import Request
from extproc.core.routing.decision import Decision
from extproc.core.routing.resolved_request import ResolvedRequest

HEAD_LIMIT = 65_536
"""Bytes: what is not said by then is not waited for. About what Envoy shows of a
large body in BUFFERED_PARTIAL mode."""


class Head:
    """Feed it the parts of a body until it knows where the request belongs."""

    __slots__ = ("_held", "_read", "_request", "parts")

    def __init__(self, request: Request) -> None:
        self._request = request
        self._held = bytearray()
        self._read = 0
        self.parts = 0
        """How many were added."""

    @property
    def held(self) -> bytes:
        """All that was fed."""
        return bytes(self._held)

    def edited(self, decision: Decision) -> bytes:
        """Return the same as the servers must get it, as far as that much of it was read."""
        held = self.held
        return self._request.edited(held[: self._read], decision) + held[self._read :]

    def add(self, part: bytes) -> ResolvedRequest | None:
        """The request's place, or None while more of the body is needed. Raises Refusal."""
        self.parts += 1
        self._held += part
        size = len(self._held)
        if size >= HEAD_LIMIT:
            self._read = HEAD_LIMIT
            return self._request.resolve(self.held[:HEAD_LIMIT], complete=False)
        if size < 2 * self._read:
            return None
        self._read = size
        return self._request.resolve_early(self.held)

    def end(self, part: bytes = b"") -> ResolvedRequest:
        """The same, with the last part of the body. Raises Refusal."""
        self._held += part
        self._read = len(self._held)
        return self._request.resolve(self.held, complete=True)
