"""The server's side of HTTP/2 (RFC 9113), made for gRPC streams over plaintext.

Clients must speak HTTP/2 at once, with prior knowledge.

How it works
------------
`receive` takes the peer's bytes and returns events. `sender` sends responses, `windows` gives the
peer credit to send more, and `take` returns the bytes to write. There is no socket, no clock and
no task here. No call ever raises. If the peer breaks a rule of the connection,
it gets a GOAWAY, every open stream gets a Reset event, and `closed` becomes true.

    FrameBuffer       the connection preface, and the beginning of an incomplete frame
    Http2Connection   frames of the connection; dispatches the others
    Receiver          frames of streams: header blocks, data, events
    Sender            responses, the peer's windows, queued data
    ReceiveWindows    our windows: credit for the peer
    Shutdown          GOAWAY of either side
    StreamTable       the streams, which the receiver, the sender and the windows share

The states of a stream
----------------------
The stream table has the whole state of a stream:

    IDLE     not in the table; its number is above `last`
    OPEN     in the table; both sides may send
    HALF     `peer_ended`: the peer has sent END_STREAM and may send no more
    ENDING   `ending`: we have ended it, but queued data still waits for a window. There are no
             more events for it, and data that arrives on it is dropped.
    CLOSED   not in the table; its number is not above `last`

    frame           IDLE      OPEN      HALF           ENDING    CLOSED
    HEADERS         OPEN (a)  HALF (b)  STREAM_CLOSED  as OPEN   fault, or ignored (c)
    DATA            fault     OPEN (d)  STREAM_CLOSED  as OPEN   STREAM_CLOSED, or ignored (c)
    RST_STREAM      fault     CLOSED    CLOSED         CLOSED    ignored
    WINDOW_UPDATE   fault     sends queued data                  ignored
    PRIORITY        ignored in every state

(a) HALF if the frame has END_STREAM. The stream is refused beyond the limit and while draining.
Malformed headers are a stream error. Lower idle streams become closed.
(b) These are trailers: without END_STREAM they are a stream error.
(c) Ignored if the peer may have sent the frame before it knew that we closed the stream. The last
`remembered` closed streams are known for that.
(d) HALF if the frame has END_STREAM.

The name of an error means a stream error: the stream is reset. A fault ends the connection.

Some frames are forbidden at times, in any state of their stream. The first frame must be SETTINGS,
and within a header block only CONTINUATION may come.

Flow control
------------
The server calls `windows.consumed` for the bytes of each Data event when few of its responses wait
in `sender.queued`. Until then the bytes count as held, and so do the bytes of an ended stream until
its queue is empty. A peer that does not read its responses can therefore make us hold one window
for each stream, and the connection's window for all streams together.

The server accounts for the data of incomplete messages itself: `windows.keep` opens the
connection's window for them, and `windows.release_kept` opens the stream's.

This cannot deadlock. Held bytes wait for the peer to read responses, which it can always do, and
then all of them are consumed. A window that is shut has then been consumed by more than half, and
at half it opens again. One stream can block the others only if some 64 streams (16 MiB / 256 KiB)
hold a full window because the peer does not read their responses. They give it back when they end,
so the server must not leave streams open that make no progress.

The server must also stop reading from a peer that does not read what `take` returns, and
end connections that are idle for too long. The budget bounds what we write for a peer that
reads nothing, see `Budget`, and so do the windows that it opens.
"""

from __future__ import annotations

from extproc.edge.http2 import errors
from extproc.edge.http2.connection import Http2Connection
from extproc.edge.http2.encoding import encode_headers
from extproc.edge.http2.events import Data, Ended, Event, Headers, Opened, Reset
from extproc.edge.http2.limits import LIMITS, Limits

__all__ = [
    "LIMITS",
    "Data",
    "Ended",
    "Event",
    "Headers",
    "Http2Connection",
    "Limits",
    "Opened",
    "Reset",
    "encode_headers",
    "errors",
]
