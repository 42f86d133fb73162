"""HTTP/1.1 as far as the benchmark needs it: requests, and the ends of messages.

A cheap generator and cheap upstreams leave more of the machine to the measured processes. So bodies
are counted and not stored, and a connection has one message at a time.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Coroutine
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")

MODEL = "llama"
PATH = "/v1/chat/completions"
PREFIXES = 64
"""Distinct prefixes of prompts."""

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked", re.IGNORECASE)
_HEAD_END = b"\r\n\r\n"
_CHUNKS_END = b"\r\n0\r\n\r\n"


def body(size: int, key: int, *, stream: bool = False) -> bytes:
    """Return a chat request of `size` bytes, if that is enough; `key` chooses its prefix."""
    before, after = _around_the_key(size, stream)
    return b"%s%03d%s" % (before, key, after)


@cache
def _around_the_key(size: int, stream: bool) -> tuple[bytes, bytes]:
    """Cache the parts around the key, because encoding megabytes of JSON takes long."""
    asked = {"model": MODEL, "stream": stream, "messages": [{"role": "user", "content": ""}]}
    text = "user 000 asks: " + "lorem ipsum " * (size // 12)
    asked["messages"] = [{"role": "user", "content": text[: size - len(json.dumps(asked))]}]
    before, _, after = json.dumps(asked).partition("000")
    return before.encode(), after.encode()


def request(content: bytes) -> bytes:
    """Return the whole request with such a body."""
    head = (
        f"POST {PATH} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
        f"content-length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


class Reader:
    """Finds the ends of messages."""

    def __init__(self) -> None:
        self.head = b""
        """Head of the current or last message."""
        self._pending = b""
        self._in_body = False
        self._left = 0
        self._tail: bytes | None = None
        """The last bytes of a chunked body; None if the body has a length."""

    def feed(self, data: bytes) -> bool:
        """Feed received bytes. Return True if they end a message."""
        if not self._in_body:
            head, end, data = (self._pending + data).partition(_HEAD_END)
            if not end:
                self._pending = head
                return False
            self._begin(head)
        self._in_body = not self._ends(data)
        return not self._in_body

    def _begin(self, head: bytes) -> None:
        self.head, self._pending = head, b""
        length = _LENGTH.search(head)
        self._left = int(length[1]) if length else 0
        self._tail = None if length or not _CHUNKED.search(head) else b"\r\n"

    def _ends(self, data: bytes) -> bool:
        if self._tail is None:
            self._left -= len(data)
            return self._left <= 0
        self._tail = (self._tail + data[-len(_CHUNKS_END) :])[-len(_CHUNKS_END) :]
        return self._tail == _CHUNKS_END


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the fastest installed event loop."""
    try:
        from uvloop import new_event_loop
    except ImportError:
        return asyncio.run(main)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)
