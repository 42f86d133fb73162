"""Validates decoded header lists: requests and trailers (RFC 9113, sections 8.1 to 8.5).

`content-length` is not checked: gRPC encodes the lengths of its messages, and no request is
forwarded from here as HTTP.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from types import MappingProxyType

from extproc.edge.http2.events import Headers

Fields = Iterable[tuple[bytes, bytes]]

_NAME = re.compile(rb"[^\x00-\x20A-Z\x7f-\xff:]+")
_VALUE = re.compile(rb"(?![ \t])[^\x00\n\r]*(?<![ \t])")

_PSEUDO = frozenset([b":authority", b":method", b":path", b":scheme"])
_CONNECTION_SPECIFIC = frozenset(
    [b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"]
)


def request(fields: Fields) -> Headers | None:
    """Return the headers of a request, or None if it is malformed."""
    headers: dict[bytes, bytes] = {}
    in_pseudo = True
    for name, value in fields:
        if name[:1] == b":":
            if not in_pseudo or name not in _PSEUDO or name in headers or not _value(value):
                return None
            headers[name] = value
            continue
        in_pseudo = False
        if not _regular(name, value):
            return None
        if name in headers:
            value = headers[name] + (b"; " if name == b"cookie" else b", ") + value
        headers[name] = value
    return MappingProxyType(headers) if _complete(headers) else None


def trailers(fields: Fields) -> bool:
    """Return True if these are well-formed trailers."""
    return all(_regular(name, value) for name, value in fields)


def _regular(name: bytes, value: bytes) -> bool:
    if not _NAME.fullmatch(name) or not _value(value) or name in _CONNECTION_SPECIFIC:
        return False
    return name != b"te" or value == b"trailers"


def _value(value: bytes) -> bool:
    return _VALUE.fullmatch(value) is not None


def _complete(headers: dict[bytes, bytes]) -> bool:
    authority = headers.get(b":authority")
    if headers.get(b":method") == b"CONNECT":
        return bool(authority) and b":scheme" not in headers and b":path" not in headers
    if authority is not None and headers.get(b"host", authority) != authority:
        return False
    return bool(headers.get(b":method") and headers.get(b":scheme") and headers.get(b":path"))
