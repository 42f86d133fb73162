r"""The token counts in a response: the prompt's tokens, and those found in the cache.

Every token of every stream passes here, so nothing is parsed meanwhile. The reader keeps the
beginning and the end of the response, and parses them once, at the end. Servers send `usage` at
the end. A stream of Anthropic's Messages has it in its first event, too, and later ones may have
fewer counts.

The kept end of a long text starts in the middle of a document, where no parser can start. But a
quote within a JSON string is escaped, so bare quotes around `usage` make it a key. If the text from
there on, after the braces that must have been open, is a whole document, then it is a key of the
response itself. Text that a model wrote is a string, or is nested deeper.

    {"choices": [{"message": {"content": "{\"usage\": 1}"}}], "usage": {"prompt_tokens": 402}}
                                                             {"usage": {"prompt_tokens": 402}}
"""

from __future__ import annotations

import re
from typing import NamedTuple, TypeGuard

import jiter

HEAD = 1024
"""Bytes that are kept of a response's beginning: twice the size of Anthropic's first event."""

TAIL = 2048
"""Bytes that are read of a response's end; up to twice as many are kept. `usage` and the rest have
a few hundred."""

MOST_TOKENS = 1_000_000_000
"""The most plausible tokens of one prompt."""

_KEY = b'"usage"'
# Occurrences that are tried: the right one is near the end.
_MOST_KEYS = 8
_IN_DOCUMENT = (b"{",)
# `{"usage": ...}`, or `{"response": {"usage": ...}}`, or `{"message": {"usage": ...}}`.
_IN_EVENT = (b"{", b'{"":{')
_EVENTS = (b"data:", b"event:", b"id:", b"retry:", b":")

# vLLM sends the first events of its Responses before it computes the prompt.
_RESPONSES = b"event: response."
_AFTER_PREFILL = re.compile(rb"^event: response\.(?!created|queued|in_progress)", re.MULTILINE)


class Usage(NamedTuple):
    """A server's token counts of a prompt."""

    prompt_tokens: int
    """Tokens of the whole prompt; at least one."""

    cached_tokens: int | None = None
    """Those that were found in the cache; None if the server does not report it."""


class UsageReader:
    """Reads `usage` from a response's body, which is fed in pieces of any size."""

    __slots__ = ("_head", "_tail")

    def __init__(self) -> None:
        self._head = b""
        self._tail = bytearray()

    def feed(self, part: bytes) -> None:
        """Take the next bytes of the body."""
        if len(self._head) < HEAD:
            self._head += part[: HEAD - len(self._head)]
        self._tail += part[-TAIL:]
        if len(self._tail) > 2 * TAIL:
            del self._tail[:-TAIL]

    def has_first_token(self, part: bytes) -> bool:
        """Return True if this part shows that the engine has computed the prompt."""
        begun = self._head[: len(_RESPONSES)]
        return not _RESPONSES.startswith(begun) or _AFTER_PREFILL.search(part) is not None

    def usage(self) -> Usage | None:
        """Return the counts so far; None if there are none, or none that can be parsed."""
        head, tail = self._head.lstrip(), bytes(self._tail[-TAIL:])
        if head.startswith(b"{"):
            return _last(tail, _IN_DOCUMENT)
        if head.startswith(_EVENTS):
            return _of_events(tail) or _of_events(head)
        return None


def _of_events(text: bytes) -> Usage | None:
    """Return the counts of the last event that has them; an event is one line."""
    for line in reversed(text.splitlines()):
        usage = _last(line, _IN_EVENT)
        if usage is not None:
            return usage
    return None


def _last(text: bytes, openings: tuple[bytes, ...]) -> Usage | None:
    """Return the last `usage` of a JSON document that ends here, after one of these openings."""
    start = len(text)
    for _ in range(_MOST_KEYS):
        start = text.rfind(_KEY, 0, start)
        if start < 0:
            break
        for opening in openings:
            usage = _usage_of(_member(opening + text[start:]))
            if usage is not None:
                return usage
    return None


def _member(text: bytes) -> object:
    """Return `usage` of a document, or of the object in it with an empty name."""
    try:
        document = jiter.from_json(text)
    except ValueError:
        return None
    inner = document.get("", document)
    return inner.get("usage") if isinstance(inner, dict) else None


def _usage_of(counts: object) -> Usage | None:
    """Return the counts of OpenAI's two forms or Anthropic's; None for any other form."""
    if not isinstance(counts, dict):
        return None
    if "prompt_tokens" in counts:
        return _plausible(counts["prompt_tokens"], _cached(counts.get("prompt_tokens_details")))
    tokens, details = counts.get("input_tokens"), counts.get("input_tokens_details")
    if isinstance(details, dict):
        return _plausible(tokens, _cached(details))
    # Anthropic counts cached tokens, and those that it caches now, separately.
    read, written = counts.get("cache_read_input_tokens"), counts.get("cache_creation_input_tokens")
    if _is_count(tokens):
        tokens += sum(part for part in (read, written) if _is_count(part))
    return _plausible(tokens, read)


def _cached(details: object) -> object:
    return details.get("cached_tokens") if isinstance(details, dict) else None


def _plausible(tokens: object, cached: object) -> Usage | None:
    if not _is_count(tokens) or tokens == 0:
        return None
    return Usage(tokens, cached if _is_count(cached) and cached <= tokens else None)


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_TOKENS
