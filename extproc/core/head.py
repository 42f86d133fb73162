"""The beginning of a body, held back until a decision can be made on it.

Where Envoy streams bodies to us and waits for them back (FULL_DUPLEX_STREAMED), the
request stands still while we hold its head, so we hold no more than a decision
needs. A client that sends a byte at a time must not have the head read at every
one: it is read when it has doubled, which costs no more than reading it twice.
"""

from __future__ import annotations

from extproc.core.request import Request
from extproc.core.router import Placement

HEAD_LIMIT = 65_536
"""Bytes: what is not said by then is not waited for. About what Envoy shows of a
large body in BUFFERED_PARTIAL mode."""


class Head:
    """Feed it chunks until it knows where the request belongs."""

    __slots__ = ("_held", "_read", "_request")

    def __init__(self, request: Request) -> None:
        self._request = request
        self._held = bytearray()
        self._read = 0

    @property
    def held(self) -> bytes:
        """All that was fed."""
        return bytes(self._held)

    def renamed(self, name: str) -> bytes:
        """The same with this name for the model, if as much as was read shows one."""
        return self._request.renamed(self._head(), name) + self._held[HEAD_LIMIT:]

    def add(self, chunk: bytes) -> Placement | None:
        """The request's place, or None while more of the body is needed. Raises Refusal."""
        self._held += chunk
        size = len(self._held)
        if size >= HEAD_LIMIT:
            return self._request.place(self._head(), complete=False)
        if size < 2 * self._read:
            return None
        self._read = size
        return self._request.place_early(self._head())

    def end(self, chunk: bytes = b"") -> Placement:
        """The same, with the last chunk of the body. Raises Refusal."""
        self._held += chunk
        return self._request.place(self._head(), complete=len(self._held) <= HEAD_LIMIT)

    def _head(self) -> bytes:
        return bytes(self._held[:HEAD_LIMIT])
