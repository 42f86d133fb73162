"""Changes the model's name in a request's body, and not another byte.

The servers may know a model by another name than the request does. Writing the
document anew would change what we do not understand (numbers that only the server
reads, the order of keys, what a client has signed), so only the value's bytes are
replaced, in a head that was read as a request before: its syntax is known to be good.

Where a key stands twice, the last one wins for us and for vLLM; elsewhere it is the
first. So every one that is shown is replaced. All that depends on a body's length is
done by `bytes` and `re`: no loop of ours runs over a prompt.

In a large head a key of the object itself is known by what is around it, which a parser reads
without building it, so it must be strict JSON, and not too far from an end: but where there is
one key only, in a body that was read to its end, it is known without. A key there whose letters
are escapes, which no client writes, is passed over.
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

_KEY = b'"model"'
_COLON = rb"[ \t\r\n]*:[ \t\r\n]*"
# A quote that is escaped begins no key: there one ends that is longer.
_PLAIN_KEY = re.compile(_KEY + rb'(?<!\\"model")' + _COLON)
# Any letter of a key may be written as an escape, U+0064 to U+006F.
_ANY_KEY = re.compile(
    rb'(?<!\\)"(?:m|\\u006[dD])(?:o|\\u006[fF])(?:d|\\u0064)(?:e|\\u0065)(?:l|\\u006[cC])"' + _COLON
)
_ESCAPED = re.compile(rb"\\u006")
# Keys looked at: an honest body has a few, and no other must keep us busy.
_MOST_KEYS = 1000
# Bytes read around such keys in a large head.
_MOST_CHECKED = 2**21
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"')


def renamed_json(head: bytes, name: str, *, whole: bool = False) -> bytes:
    """The beginning of a JSON object, or all of it, in which `model` is this name.

    It is the head itself where that shows no whole value of `model`. `whole`: it is known to be all
    of the object, and to have one.
    """
    large = len(head) > ALWAYS_PARSED_BYTES
    spans = _models_in_large(head, whole=whole) if large else _json_models(head)
    return _replaced(head, spans, json.dumps(name).encode())


def renamed_form(head: bytes, content_type: str, name: str) -> bytes:
    """The same for a multipart form and its field `model`."""
    return _replaced(head, form_values(head, content_type, b"model"), name.encode())


def _replaced(head: bytes, spans: Iterable[Span], value: bytes) -> bytes:
    pieces: list[bytes | memoryview] = []
    view, position = memoryview(head), 0
    for start, end in spans:
        pieces += (view[position:start], value)
        position = end
    return b"".join((*pieces, view[position:])) if pieces else head


def _json_models(head: bytes) -> Iterator[Span]:
    """Where the strings stand that are values of the object's own `model`."""
    keys = _ANY_KEY if _ESCAPED.search(head) else _PLAIN_KEY
    position = depth = 0
    for key in islice(keys.finditer(head), _MOST_KEYS):
        depth += _opened(head[position : key.start()])
        position = key.end()
        value = _STRING.match(head, position) if depth == 1 else None
        if value is not None:
            yield value.span()


def _models_in_large(head: bytes, *, whole: bool) -> Iterator[Span]:
    found = list(_keys_and_values(head))
    if whole and len(found) == 1:
        yield found[0][1]
        return
    checked = 0
    for start, value in found:
        end = value[1]
        # If they stand in no other object, what is around them is one without them.
        before = not whole or start < len(head) - end
        size = start if before else len(head) - end
        if checked + size > _MOST_CHECKED:
            continue
        checked += size
        if is_strict_object(head[:start] + b'"":0}' if before else b'{"":0' + head[end:]):
            yield value


def _keys_and_values(head: bytes) -> Iterator[tuple[int, Span]]:
    """Where a key `model` begins, and the text that is its value, in whatever object."""
    start = head.find(_KEY)
    for _ in range(_MOST_KEYS):
        if start < 0:
            return
        key = _PLAIN_KEY.match(head, start)
        value = _STRING.match(head, key.end()) if key else None
        if value is not None:
            yield start, value.span()
        start = head.find(_KEY, start + len(_KEY))


def _opened(part: bytes) -> int:
    """By how much the nesting is deeper after a part that begins and ends outside of strings."""
    if b"\\" in part:
        part = part.replace(b"\\\\", b"").replace(b'\\"', b"")
    # Now every quote begins or ends a string.
    bare = b"".join(part.split(b'"')[::2])
    opening = bare.count(b"{") + bare.count(b"[")
    return opening - bare.count(b"}") - bare.count(b"]")
