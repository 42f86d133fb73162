"""The fields of `/v1/responses` bodies that concern stored responses."""

from __future__ import annotations

import re

REQUEST_ID = "request_id"
"""vLLM takes the response's id from this field."""
PREVIOUS = "previous_response_id"
"""Refers to an earlier response."""
STORE = "store"
"""Turns storing off."""
FIELDS = frozenset((REQUEST_ID, PREVIOUS, STORE))

_OPENING = re.compile(rb"[ \t\r\n]*\{[ \t\r\n]*")
_CLOSING = b"}"


def with_request_id(head: bytes, request_id: str) -> bytes:
    """Return a JSON object, or its beginning, with this field before all others."""
    opening = _OPENING.match(head)
    if opening is None:
        return head
    end = opening.end()
    comma = b"" if head[end : end + 1] == _CLOSING else b","
    return b'%b"%b":"%b"%b%b' % (
        head[:end],
        REQUEST_ID.encode(),
        request_id.encode(),
        comma,
        head[end:],
    )
