"""The beginning of a body, held until it is sufficient for a decision.

If the reply to the headers may wait for the body (STREAMED without waiting for it,
FULL_DUPLEX_STREAMED), the request makes no progress meanwhile. So the sidecar waits for no more
than a decision needs. A client may send one byte at a time, so the head is read only when its size
has doubled. In total that costs no more than reading it twice.
"""

from __future__ import annotations

from extproc.core.conversation.request import Request
from extproc.core.routing.decision import Decision
from extproc.core.routing.resolved_request import ResolvedRequest

HEAD_LIMIT = 65_536
"""The most bytes that a decision waits for: about what Envoy shows of a large body in
BUFFERED_PARTIAL mode."""

_MOST_CHECKED_BYTES = 16 * HEAD_LIMIT
"""The most bytes that the checks for the body's end read in total. Each check reads all parts."""


class Head:
    """The parts of a body so far; `add` resolves the request once they are sufficient."""

    __slots__ = ("_checked", "_held", "_read", "_request", "parts")

    def __init__(self, request: Request) -> None:
        self._request = request
        self._checked = 0
        self._held = bytearray()
        self._read = 0
        self.parts = 0
        """The number of parts that were added."""

    @property
    def held(self) -> bytes:
        """The bytes of all parts."""
        return bytes(self._held)

    def edited(self, decision: Decision) -> bytes:
        """Return the held bytes as the servers must get them: the part that was read may change."""
        held = self.held
        return self._request.edited(held[: self._read], decision) + held[self._read :]

    def hold(self, part: bytes) -> None:
        """Add a part, and do not read it yet."""
        self.parts += 1
        self._held += part

    def add(self, part: bytes) -> ResolvedRequest | None:
        """Add a part; return the resolved request, or None if more is needed. Raises Refusal."""
        self.hold(part)
        return self.resolve()

    @property
    def size(self) -> int:
        """The number of bytes of all parts."""
        return len(self._held)

    @property
    def is_full(self) -> bool:
        """True if no more bytes are waited for."""
        return self.size >= HEAD_LIMIT

    def is_whole(self) -> bool:
        """Return True if the body is whole, although Envoy did not mark its end."""
        if self._checked > _MOST_CHECKED_BYTES:
            return False
        whole, read = self._request.is_whole(self._held)
        self._checked += read
        return whole

    def resolve(self) -> ResolvedRequest | None:
        """Return the resolved request, or None if more is needed. Raises Refusal."""
        size = len(self._held)
        if self.is_full:
            self._read = HEAD_LIMIT
            return self._request.resolve(self.held[:HEAD_LIMIT], complete=False)
        if size < 2 * self._read:
            return None
        self._read = size
        return self._request.resolve_early(self.held)

    def end(self, part: bytes = b"") -> ResolvedRequest:
        """Add the last part, and return the resolved request. Raises Refusal."""
        self._held += part
        self._read = len(self._held)
        return self._request.resolve(self.held, complete=True)
