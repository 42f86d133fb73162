"""The orderly end of a connection by GOAWAY, from either side (RFC 9113, section 6.8)."""

from __future__ import annotations

from extproc.edge.http2 import frames
from extproc.edge.http2.errors import NO_ERROR
from extproc.edge.http2.frames import LARGEST_STREAM
from extproc.edge.http2.streams import StreamTable

_DRAINING = b"draining"


class Shutdown:
    """The GOAWAY frames that were sent and received.

    We send two. The first one only announces the end, as the peer may have opened streams
    that are still on their way to us. The second one names the last stream that we serve.
    """

    def __init__(self, table: StreamTable, output: list[bytes | memoryview]) -> None:
        self._table = table
        self._output = output
        self._announced = False
        self.concluded = False
        """True once our GOAWAY has named the last stream."""
        self.peer_leaves = False
        """True once the peer has sent GOAWAY."""
        self._promised = LARGEST_STREAM
        """The last stream that our GOAWAY has named."""

    @property
    def last_stream(self) -> int:
        """The last stream that a GOAWAY may name now: it must not increase."""
        return min(self._table.last, self._promised)

    def proceed(self) -> None:
        """Announce the end, or conclude it if it was announced before."""
        if self._announced:
            self._conclude()
        else:
            self._announced = True
            self._output += (frames.goaway(LARGEST_STREAM, NO_ERROR), frames.ping(_DRAINING))

    def ping_acknowledged(self, payload: bytes) -> None:
        """Conclude if the peer has acknowledged our PING: it has received the announcement."""
        if payload == _DRAINING and self._announced:
            self._conclude()

    def peer_said_goaway(self) -> None:
        """Accept no more streams."""
        self.peer_leaves = True
        self._table.room = 0

    def _conclude(self) -> None:
        if not self.concluded:
            self.concluded = True
            self._table.room = 0
            self._promised = self._table.last
            self._output.append(frames.goaway(self._promised, NO_ERROR))
