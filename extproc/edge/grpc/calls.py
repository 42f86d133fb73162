"""A gRPC call: the method that it calls, its handler, and what has arrived of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from extproc.edge.grpc.messages import Messages
from extproc.edge.http2 import Headers


class Handler(Protocol):
    """The receiver of the messages of one call."""

    @property
    def owes_replies(self) -> bool:
        """True if the call must not end with the peer's last message, because replies are due."""

    def receive(self, message: bytes) -> Sequence[bytes]:
        """Return the response messages. Raises CallError, or DecodeError for a garbled message."""

    def close(self) -> None:
        """End the call. It is called once, however the call ends."""


Send = Callable[[Sequence[bytes]], None]
"""Function that sends messages at any time, not only in response to a message."""


class Method(NamedTuple):
    """A gRPC method, which clients call by its HTTP/2 path."""

    handler: Callable[[Send, Headers], Handler]
    """Function that opens a call with these headers. Raises CallError to refuse it."""
    ends_with_peer: bool = True
    """True if the call ends when the peer has sent its last message."""


class Call:
    """A call that is not over."""

    __slots__ = (
        *("answered", "handler", "messages", "method", "peer_ended", "stream", "unfinished"),
        "withheld",
    )

    def __init__(self, stream: int, method: Method, handler: Handler) -> None:
        self.stream = stream
        """Number of the HTTP/2 stream."""
        self.method = method
        self.handler = handler
        self.messages = Messages()
        self.answered = False
        """True once response headers were sent."""
        self.peer_ended = False
        """True if the peer has sent its last message, and replies are still due."""
        self.unfinished = 0
        """Bytes of an incomplete message that are counted in `UnfinishedMessages`."""
        self.withheld = 0
        """Received bytes for which the peer has no new credit yet."""
