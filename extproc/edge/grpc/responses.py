"""Header blocks of gRPC responses."""

from __future__ import annotations

from urllib.parse import quote

from extproc.edge.grpc.messages import Status
from extproc.edge.http2 import encode_headers

_HEADERS = ((b":status", b"200"), (b"content-type", b"application/grpc"))

START = encode_headers(_HEADERS)
"""The headers before the first message."""
NOT_GRPC = encode_headers([(b":status", b"415")])
"""The response to a request with another content type."""
NOT_POST = encode_headers([(b":status", b"405"), (b"allow", b"POST")])
"""The response to a request with another method than POST."""


def trailers(status: Status, message: str = "", *, answered: bool) -> bytes:
    """Return the trailers of a call. If it has no response headers yet, they come first."""
    if status is Status.OK:
        return _OK if answered else _OK_ALONE
    return _trailers(status, message, answered)


def _trailers(status: Status, message: str, answered: bool) -> bytes:
    pairs = [(b"grpc-status", str(int(status)).encode())]
    if message:
        pairs.append((b"grpc-message", quote(message, safe=" ,:;/'").encode()))
    return encode_headers([*(() if answered else _HEADERS), *pairs])


_OK = _trailers(Status.OK, "", True)
_OK_ALONE = _trailers(Status.OK, "", False)
