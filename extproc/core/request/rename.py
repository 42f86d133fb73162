"""Replaces the model's name in a request's body, and no other byte.

The servers may use another name for the model than the request. The sidecar does not serialize the
parsed document, because that could change numbers, the order of keys, or content that the client
has signed. It replaces the bytes of the value only. The body has been parsed or scanned before, so
its syntax is valid.

If the key occurs more than once, the sidecar and vLLM use the last one, and other servers the
first. So all visible values are replaced. Work that grows with the body's length is done by `bytes`
and `re`: no Python loop runs over a prompt.

In a large body, a `model` key may belong to an inner object. To find out, a parser checks the JSON
before or after the key without building its values. The shorter side is checked, within a limit.
No check is necessary if a complete body has only one such key. In a large body, keys that are
written with escapes are ignored; clients do not write such keys.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from itertools import islice

from extproc.core.request.form_body import form_values
from extproc.core.request.json_limits import ALWAYS_PARSED_BYTES
from extproc.core.request.json_scan import is_strict_object

Span = tuple[int, int]
"""Start and end of a value's bytes."""

_KEY = b'"model"'
_COLON = rb"[ \t\r\n]*:[ \t\r\n]*"
# An escaped quote does not start a key: a longer string ends there.
_PLAIN_KEY = re.compile(_KEY + rb'(?<!\\"model")' + _COLON)
# Each letter of a key may be an escape, from U+0064 to U+006F.
_ANY_KEY = re.compile(
    rb'(?<!\\)"(?:m|\\u006[dD])(?:o|\\u006[fF])(?:d|\\u0064)(?:e|\\u0065)(?:l|\\u006[cC])"' + _COLON
)
_ESCAPED = re.compile(rb"\\u006")
# Real bodies have a few such keys. The limit bounds the work.
_MAX_KEYS = 1000
# Bytes that are checked to find the object's own keys in a large body.
_MAX_CHECKED_BYTES = 2**21
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"')


def renamed_json(head: bytes, name: str, *, whole: bool = False) -> bytes:
    """Return a JSON object, or its first part, with this name as `model`.

    Returns `head` itself if it contains no complete value of `model`. `whole`: the head is a
    complete object that has a model.
    """
    is_large = len(head) > ALWAYS_PARSED_BYTES
    spans = _values_in_large(head, whole=whole) if is_large else _values(head)
    return _replaced(head, spans, json.dumps(name).encode())


def renamed_form(head: bytes, content_type: str, name: str) -> bytes:
    """Return a multipart form, or its first part, with this name in the field `model`."""
    return _replaced(head, form_values(head, content_type, b"model"), name.encode())


def _replaced(head: bytes, spans: Iterable[Span], value: bytes) -> bytes:
    pieces: list[bytes | memoryview] = []
    view, position = memoryview(head), 0
    for start, end in spans:
        pieces += (view[position:start], value)
        position = end
    return b"".join((*pieces, view[position:])) if pieces else head


def _values(head: bytes) -> Iterator[Span]:
    """Yield start and end of each string that is the value of the object's own `model`."""
    keys = _ANY_KEY if _ESCAPED.search(head) else _PLAIN_KEY
    position = depth = 0
    for key in islice(keys.finditer(head), _MAX_KEYS):
        depth += _depth_change(head[position : key.start()])
        position = key.end()
        value = _STRING.match(head, position) if depth == 1 else None
        if value is not None:
            yield value.span()


def _values_in_large(head: bytes, *, whole: bool) -> Iterator[Span]:
    """Yield the same for a large object, as far as the limit on checked bytes allows."""
    found = list(_keys_and_values(head))
    if whole and len(found) == 1:
        yield found[0][1]
        return
    checked = 0
    for start, value in found:
        end = value[1]
        check_before = not whole or start < len(head) - end
        size = start if check_before else len(head) - end
        if checked + size > _MAX_CHECKED_BYTES:
            continue
        checked += size
        # If the key is the object's own, the text on either side makes an object with another key.
        if is_strict_object(head[:start] + b'"":0}' if check_before else b'{"":0' + head[end:]):
            yield value


def _keys_and_values(head: bytes) -> Iterator[tuple[int, Span]]:
    """Yield the start of each key `model` in any object, and the span of its value.

    The value must be a string.
    """
    start = head.find(_KEY)
    for _ in range(_MAX_KEYS):
        if start < 0:
            return
        key = _PLAIN_KEY.match(head, start)
        value = _STRING.match(head, key.end()) if key else None
        if value is not None:
            yield start, value.span()
        start = head.find(_KEY, start + len(_KEY))


def _depth_change(part: bytes) -> int:
    """Return the change of nesting depth over a part that starts and ends outside of strings."""
    if b"\\" in part:
        part = part.replace(b"\\\\", b"").replace(b'\\"', b"")
    # Now every quote starts or ends a string.
    outside = b"".join(part.split(b'"')[::2])
    opening = outside.count(b"{") + outside.count(b"[")
    return opening - outside.count(b"}") - outside.count(b"]")
