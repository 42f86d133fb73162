"""Frames as a peer builds and reads them; nothing here is the product's own."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from hpack import Encoder
from hyperframe.frame import Frame, GoAwayFrame, RstStreamFrame

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS = range(5)
PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(5, 10)

ACK = END_STREAM = 1
END_HEADERS = 4
PADDED = 8
WITH_PRIORITY = 0x20

NO_ERROR, PROTOCOL_ERROR, _, FLOW_CONTROL_ERROR, _, STREAM_CLOSED = range(6)
FRAME_SIZE_ERROR, REFUSED_STREAM, CANCEL, COMPRESSION_ERROR, _, ENHANCE_YOUR_CALM = range(6, 12)

Fields = Iterable[tuple[bytes, bytes]]

REQUEST = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/envoy.service.ext_proc.v3.ExternalProcessor/Process"),
    (b":authority", b"sidecar"),
    (b"te", b"trailers"),
    (b"content-type", b"application/grpc"),
)


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    size = len(payload).to_bytes(3, "big")
    return size + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def block(fields: Fields = REQUEST) -> bytes:
    """Return a header block that neither changes nor uses the dynamic table."""
    return Encoder().encode([(name, value, True) for name, value in fields])


def headers(stream: int, fields: Fields = REQUEST, *, end: bool = False) -> bytes:
    return frame(HEADERS, END_HEADERS | end, stream, block(fields))


def data(stream: int, payload: bytes = b"", *, end: bool = False) -> bytes:
    return frame(DATA, int(end), stream, payload)


def padded_data(stream: int, payload: bytes, padding: int, *, end: bool = False) -> bytes:
    return frame(DATA, PADDED | end, stream, bytes([padding]) + payload + bytes(padding))


def rst_stream(stream: int, code: int = CANCEL) -> bytes:
    return frame(RST_STREAM, 0, stream, code.to_bytes(4, "big"))


def window_update(stream: int, increment: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream, increment.to_bytes(4, "big"))


def settings(pairs: Iterable[tuple[int, int]] = ()) -> bytes:
    payload = b"".join(k.to_bytes(2, "big") + v.to_bytes(4, "big") for k, v in pairs)
    return frame(SETTINGS, 0, 0, payload)


def ping(payload: bytes = b"12345678", *, ack: bool = False) -> bytes:
    return frame(PING, int(ack), 0, payload)


def goaway(last: int = 0, code: int = NO_ERROR) -> bytes:
    return frame(GOAWAY, 0, 0, last.to_bytes(4, "big") + code.to_bytes(4, "big"))


SETTINGS_ACK = frame(SETTINGS, ACK, 0)


def parsed(output: bytes) -> list[Frame]:
    """Return the frames in these bytes, which must be complete and legal."""
    found = []
    while output:
        assert len(output) >= 9
        header, size = Frame.parse_frame_header(memoryview(output[:9]), strict=True)
        assert len(output) >= 9 + size
        header.parse_body(memoryview(output[9 : 9 + size]))
        found.append(header)
        output = output[9 + size :]
    return found


def cut(whole: bytes, places: Iterable[int]) -> list[bytes]:
    """Cut bytes into pieces."""
    cuts = sorted({min(place, len(whole)) for place in places} | {0, len(whole)})
    return [whole[start:stop] for start, stop in pairwise(cuts)]


def resets(found: Iterable[Frame]) -> list[tuple[int, int]]:
    return [(f.stream_id, f.error_code) for f in found if isinstance(f, RstStreamFrame)]


def faults(found: Iterable[Frame]) -> list[tuple[int, int]]:
    """Return last stream and code of each GOAWAY."""
    return [(f.last_stream_id, f.error_code) for f in found if isinstance(f, GoAwayFrame)]
