"""The state of one open stream."""

from __future__ import annotations

from collections import deque


class Stream:
    """A record that the sender, the receiver and the windows of a connection change."""

    __slots__ = (
        *("answered", "consumed", "ending", "held", "id", "kept", "peer_ended", "queue"),
        *("queued", "receive_window", "send_window", "trailers", "window"),
    )

    def __init__(self, id_: int, send_window: int, receive_window: int) -> None:
        self.id = id_
        self.send_window = send_window
        """Bytes that the peer lets us send. Negative after the peer has reduced its windows."""
        self.window = receive_window
        """Size of our window: bytes that the peer may send without a WINDOW_UPDATE from us."""
        self.receive_window = receive_window
        """Bytes that the peer may still send."""
        self.held = 0
        """Received bytes that count against the connection's window."""
        self.kept = 0
        """Received bytes that count against the stream's window only."""
        self.consumed = 0
        """Consumed bytes that no WINDOW_UPDATE has given back yet."""
        self.answered = False
        """True once we have sent response headers."""
        self.peer_ended = False
        """True once the peer has sent END_STREAM."""
        self.ending = False
        """True once `Sender.end` was called. The stream closes when its queue is empty."""
        self.queue: deque[memoryview] | None = None
        """Response data that waits for a window. None until data had to wait."""
        self.queued = 0
        """Bytes in the queue."""
        self.trailers = b""
        """The header block to send after the queue."""
