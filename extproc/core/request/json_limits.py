"""Limits on the part of a JSON body that is parsed with every value.

To build every value of 8 MiB of JSON can take seconds, in which the sidecar serves no other
request. So the parsed part ends after a number of bytes and a number of values, whichever comes
first. The limits keep it below 50 ms of CPU time.

Base64 data, such as an image, parses fast and holds no values. It does not count towards the
bytes, so that the text after an image is parsed too.
"""

from __future__ import annotations

import re

ALWAYS_PARSED_BYTES = 131_072
"""Bodies up to this size are always parsed in full, which takes 30 ms at worst."""

MAX_PARSED_BYTES = 2**20
"""Parsed bytes of a larger body, without base64: twice the text of a prompt that is compared."""

MAX_PARSED_VALUES = 24_000
"""Strings, commas and opening brackets in the parsed part: about 7 per chat message, one per token
id. To build the values and to walk them takes 15 ms at worst."""

_PIECE_BYTES = 16_384  # a piece counts as base64 as a whole or not at all
_NOT_IN_BASE64 = (b" ", b'"', b"\\", b",", b"[", b"{", b"\n")
_NUMBER = b"0123456789+-.eE"

_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?+\Z)'  # the last string may be cut
_VALUES = re.compile(
    rb'(?:[^",\[{]*+(?:%b|[,\[{])){0,%d}+[^",\[{]*+' % (_STRING, MAX_PARSED_VALUES), re.DOTALL
)
_NO_SIGNS = bytes(set(range(256)) - set(b",[{"))


def parsed_length(head: bytes) -> int:
    """Return the number of bytes of `head` that the limits allow to be parsed."""
    end, signs = _end_by_bytes(head)
    if signs <= MAX_PARSED_VALUES:
        return end
    end = min(len(head), MAX_PARSED_BYTES)
    values = _VALUES.match(head, 0, end)  # signs inside strings do not count
    return values.end() if values else 0


def _end_by_bytes(head: bytes) -> tuple[int, int]:
    """Return the end of the part that the byte limit allows, and the signs of values in it."""
    if len(head) <= MAX_PARSED_BYTES:
        return len(head), len(head.translate(None, _NO_SIGNS))
    left, signs = MAX_PARSED_BYTES, 0
    for start in range(0, len(head), _PIECE_BYTES):
        piece = head[start : start + _PIECE_BYTES]
        if _is_base64(piece):
            continue
        signs += len(piece.translate(None, _NO_SIGNS))
        left -= len(piece)
        if left <= 0 or signs > MAX_PARSED_VALUES:
            return min(len(head), start + _PIECE_BYTES), signs
    return len(head), signs


def _is_base64(piece: bytes) -> bool:
    """Return True if a piece can be inside base64. Digits alone do not count: they parse
    slowly.
    """
    if any(sign in piece for sign in _NOT_IN_BASE64):
        return False
    return piece.isascii() and bool(piece.strip(_NUMBER))
