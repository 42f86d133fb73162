r"""Puts the requested name into the `model` of a response while its body passes.

A body is one JSON object, or a stream of server-sent events with an object in each `data`
line. Only the value of a key `model` is replaced: the object's own, and in events also that of
`response` (OpenAI's Responses) and `message` (Anthropic's Messages).

    data: {"id":"c1","object":"chat.completion.chunk","model":"llama","choices":[...]}
    data: {"type":"response.created","response":{"id":"resp_1","model":"llama",...}}
    data: {"type":"message_start","message":{"id":"msg_1","model":"llama",...}}

Bytes pass as they come. Only an unfinished key, or an unfinished value of `model`, waits for its
end: at most LONGEST_HELD bytes. A quote within a text is escaped, so `"model"` in what a model
wrote is never taken for a key.
"""

from __future__ import annotations

import json
import re

LONGEST_HELD = 4096
"""Bytes of one unfinished key or value. An object with a longer one passes unchanged from there."""

_TEXT = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_REST_OF_TEXT = re.compile(rb"[^\"\\]*+(?:\\.[^\"\\]*+)*+", re.DOTALL)
_TO_SIGN = re.compile(rb'[^"{}\[\],]*+')
_TO_DEEP_SIGN = re.compile(rb'[^"{}\[\]]*+')
_MODEL = b'"model"'
_NESTED = frozenset((b'"response"', b'"message"'))
_NONE: frozenset[bytes] = frozenset()
_QUOTE, _OPENING, _COMMA = 0x22, b"{[", 0x2C
_DATA = b"data:"
_LINE_END = b"\n"

EVENTS = "text/event-stream"
JSON = "application/json"


class ResponseNames:
    """A response's body, fed in pieces of any size. The bytes returned go to the client."""

    __slots__ = ("_document", "_events", "_held", "_in_data", "_line_begins", "_name")

    def __init__(self, name: str, *, events: bool) -> None:
        self._name = json.dumps(name).encode()
        self._events = events
        self._held = b""
        self._line_begins = True
        self._in_data = False
        self._document = _Document(self._name, _NONE)

    def feed(self, part: bytes, *, end: bool = False) -> bytes:
        """Return the next bytes with the name replaced, and at the end those held, too."""
        data = self._held + part if self._held else part
        self._held = b""
        passed = self._feed_events(data) if self._events else self._feed_document(data)
        if end and self._held:
            passed += self._held
            self._held = b""
        return passed

    def _feed_document(self, data: bytes) -> bytes:
        passed, used = self._document.feed(data, 0, len(data))
        self._held = data[used:]
        return passed

    def _feed_events(self, data: bytes) -> bytes:
        pieces: list[bytes] = []
        position = 0
        while position < len(data):
            newline = data.find(_LINE_END, position)
            end = newline + 1 or len(data)
            if self._line_begins:
                begun = data[position : position + len(_DATA)]
                if not newline + 1 and len(begun) < len(_DATA) and _DATA.startswith(begun):
                    break  # the next bytes decide the kind of line
                self._in_data = begun == _DATA
                if newline + 1 and (not self._in_data or data.find(_MODEL, position, end) < 0):
                    pieces.append(data[position:end])
                    position = end
                    continue
                self._document = _Document(self._name, _NESTED)
            passed, used = data[position:end], end
            if self._in_data:
                passed, used = self._document.feed(data, position, end)
                if used < end and newline + 1:
                    passed, used = passed + data[used:end], end  # a line ends every object
            pieces.append(passed)
            position = used
            self._line_begins = used == newline + 1 and newline + 1 > 0
            if used < end:
                break
        self._held = data[position:]
        return b"".join(pieces)


class _Document:
    """One JSON object that arrives in pieces."""

    __slots__ = ("_deep", "_depth", "_done", "_in_text", "_key", "_name", "_nested", "_wants_key")

    def __init__(self, name: bytes, nested: frozenset[bytes]) -> None:
        self._name = name
        self._nested = nested
        self._depth = 0
        """The number of open brackets."""
        self._deep = 0
        """The depth of the nested object whose keys are read too, or 0."""
        self._key = b""
        """The latest key, in quotes, until its value ends."""
        self._wants_key = False
        self._in_text = False
        """True within a text that is neither a key nor a value of `model`."""
        self._done = False
        """True if the rest passes unchanged."""

    def feed(self, data: bytes, start: int, end: int) -> tuple[bytes, int]:
        """Return the bytes that may pass, and the position of those that must come again."""
        pieces: list[bytes] = []
        kept = position = start
        while position < end and not self._done:
            if self._in_text:
                position = _REST_OF_TEXT.match(data, position, end).end()  # type: ignore[union-attr]
                if position == end:
                    break
                if data[position] != _QUOTE:  # the last byte is half an escape
                    return b"".join((*pieces, data[kept:position])), position
                self._in_text = False
                position += 1
                continue
            reads_keys = self._depth == 1 or self._depth == self._deep
            signs = _TO_SIGN if reads_keys else _TO_DEEP_SIGN
            position = signs.match(data, position, end).end()  # type: ignore[union-attr]
            if position == end:
                break
            sign = data[position]
            if sign != _QUOTE:
                self._on_sign(sign)
                position += 1
                continue
            is_value = self._key == _MODEL
            if not reads_keys or not (self._wants_key or is_value):
                self._in_text = True
                position += 1
                continue
            text = _TEXT.match(data, position, end)
            if text is None:
                if end - position <= LONGEST_HELD:
                    return b"".join((*pieces, data[kept:position])), position
                self._done = True
                break
            if self._wants_key:
                self._key, self._wants_key = text[0], False
            else:
                pieces += (data[kept:position], self._name)
                kept = text.end()
                self._key = b""
                self._done = self._depth == 1
            position = text.end()
        if not pieces:
            return data[start:end], end
        return b"".join((*pieces, data[kept:end])), end

    def _on_sign(self, sign: int) -> None:
        """Follow a bracket or a comma outside of texts."""
        if sign == _COMMA:
            self._key, self._wants_key = b"", True
        elif sign in _OPENING:
            self._depth += 1
            is_object = sign == _OPENING[0]
            if self._depth == 1:
                self._done = not is_object
            elif self._depth == 2 and is_object and self._key in self._nested:
                self._deep = 2
            self._wants_key = is_object and (self._depth == 1 or self._depth == self._deep)
            self._key = b""
        else:
            self._depth -= 1
            self._done = self._depth <= 0
            if self._depth == 1:
                self._deep = 0
            self._wants_key = False
