"""What a connection knows of one open stream."""

from __future__ import annotations

from collections import deque


class Stream:
    """A record: the connection does everything with it."""

    __slots__ = (
        *("answered", "consumed", "ending", "held", "id", "kept", "peer_ended", "queue"),
        *("queued", "receive_window", "send_window", "trailers", "window"),
    )

    def __init__(self, id_: int, send_window: int, receive_window: int) -> None:
        self.id = id_
        self.send_window = send_window
        """Bytes that the peer lets us send; below zero after it has changed its mind."""
        self.window = receive_window
        """Bytes that the peer may have sent without a WINDOW_UPDATE from us."""
        self.receive_window = receive_window
        """Bytes that we let the peer send."""
        self.held = 0
        """Bytes that came and count against the connection's window."""
        self.kept = 0
        """Bytes that came and count against the stream's window only."""
        self.consumed = 0
        """Bytes that came and are dealt with, but that the peer has not been told of."""
        self.answered = False
        """Whether we have sent anything."""
        self.peer_ended = False
        self.ending = False
        """Whether we have ended it: once what is queued has gone, it is closed."""
        self.queue: deque[memoryview] | None = None
        """What waits for a window; None until anything had to."""
        self.queued = 0
        """Bytes of it."""
        self.trailers = b""
        """The block that comes after it."""
