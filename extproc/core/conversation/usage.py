r"""What an answer says of its prompt: how many tokens it had, and how many were in the cache.

Every token of every stream passes here, so nothing is parsed on the way: the beginning and the end
of the answer are kept, and looked at once, when it is over. Servers say `usage` at the end; a
stream of Anthropic's Messages says it in its first event, too, and what follows may say less.

What is kept of a long text begins somewhere in its middle, where no parser can begin. But a quote
within a JSON string is escaped, so bare quotes around `usage` make it a key; and if all from there
on, with the braces before it that must have been opened, is a whole document, then it is a key of
the answer itself. What a model wrote is a string, or lies deeper.

    {"choices": [{"message": {"content": "{\"usage\": 1}"}}], "usage": {"prompt_tokens": 402}}
                                                             {"usage": {"prompt_tokens": 402}}
"""

from __future__ import annotations

import re
from typing import NamedTuple, TypeGuard

import jiter

HEAD = 1024
"""Bytes of an answer's beginning that are kept: twice what Anthropic's first event has."""

TAIL = 2048
"""Bytes of its end that are read; at times twice as many are kept. From `usage` on there are a
few hundred."""

MOST_TOKENS = 1_000_000_000
"""Of one prompt; who says more is wrong."""

_KEY = b'"usage"'
# Of one document: hardly anything follows the one that counts.
_MOST_KEYS = 8
_OF_AN_ANSWER = (b"{",)
# `{"usage": ...}`, or `{"response": {"usage": ...}}`, or `{"message": {"usage": ...}}`.
_OF_AN_EVENT = (b"{", b'{"":{')
_EVENTS = (b"data:", b"event:", b"id:", b"retry:", b":")

# vLLM sends the first events of its Responses before it computes anything.
_RESPONSES = b"event: response."
_SPOKEN = re.compile(rb"^event: response\.(?!created|queued|in_progress)", re.MULTILINE)


class Usage(NamedTuple):
    """What a server counted of a prompt."""

    prompt_tokens: int
    """Of the whole prompt; more than none."""

    cached_tokens: int | None = None
    """Of those, found in the cache; None where it does not say."""


class UsageReader:
    """Feed it an answer's body, in pieces of any size; then ask for its `usage`."""

    __slots__ = ("_head", "_tail")

    def __init__(self) -> None:
        self._head = b""
        self._tail = bytearray()

    def feed(self, part: bytes) -> None:
        """The next bytes of the body."""
        if len(self._head) < HEAD:
            self._head += part[: HEAD - len(self._head)]
        self._tail += part[-TAIL:]
        if len(self._tail) > 2 * TAIL:
            del self._tail[:-TAIL]

    def speaks(self, part: bytes) -> bool:
        """Whether the engine has computed the prompt, now that it has sent this part."""
        begun = self._head[: len(_RESPONSES)]
        return not _RESPONSES.startswith(begun) or _SPOKEN.search(part) is not None

    def usage(self) -> Usage | None:
        """What was said so far; None where that is nothing, or nothing that can be read."""
        head, tail = self._head.lstrip(), bytes(self._tail[-TAIL:])
        if head.startswith(b"{"):
            return _last(tail, _OF_AN_ANSWER)
        if head.startswith(_EVENTS):
            return _of_events(tail) or _of_events(head)
        return None


def _of_events(text: bytes) -> Usage | None:
    """By the last event that says it: a stream has a line for each."""
    for line in reversed(text.splitlines()):
        usage = _last(line, _OF_AN_EVENT)
        if usage is not None:
            return usage
    return None


def _last(text: bytes, openings: tuple[bytes, ...]) -> Usage | None:
    """By the last `usage` of a JSON document that ends here, after one of these openings."""
    place = len(text)
    for _ in range(_MOST_KEYS):
        place = text.rfind(_KEY, 0, place)
        if place < 0:
            break
        for opening in openings:
            usage = _usage_of(_member(opening + text[place:]))
            if usage is not None:
                return usage
    return None


def _member(text: bytes) -> object:
    """`usage` of a document, or of what is in it under an empty name."""
    try:
        document = jiter.from_json(text)
    except ValueError:
        return None
    inner = document.get("", document)
    return inner.get("usage") if isinstance(inner, dict) else None


def _usage_of(said: object) -> Usage | None:
    """What OpenAI's two forms or Anthropic's say; None where it is none of them."""
    if not isinstance(said, dict):
        return None
    if "prompt_tokens" in said:
        return _sound(said["prompt_tokens"], _cached(said.get("prompt_tokens_details")))
    tokens, details = said.get("input_tokens"), said.get("input_tokens_details")
    if isinstance(details, dict):
        return _sound(tokens, _cached(details))
    # Anthropic counts those apart that were cached, or are now.
    read, written = said.get("cache_read_input_tokens"), said.get("cache_creation_input_tokens")
    if _is_count(tokens):
        tokens += sum(part for part in (read, written) if _is_count(part))
    return _sound(tokens, read)


def _cached(details: object) -> object:
    return details.get("cached_tokens") if isinstance(details, dict) else None


def _sound(tokens: object, cached: object) -> Usage | None:
    if not _is_count(tokens) or tokens == 0:
        return None
    return Usage(tokens, cached if _is_count(cached) and cached <= tokens else None)


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_TOKENS
