"""HTTP/1.1 as far as a benchmark needs it: what requests look like, and where a message ends.

The cheaper the generator and the upstreams are, the more of the machine is left for what is
measured. So bodies are counted and not kept, and a connection has one message at a time.
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
"""Distinct beginnings of prompts."""

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked", re.IGNORECASE)
_HEAD_END = b"\r\n\r\n"
_CHUNKS_END = b"\r\n0\r\n\r\n"


def body(size: int, key: int, *, stream: bool = False) -> bytes:
    """A chat request of `size` bytes, if that is not too few; `key` makes its prefix."""
    before, after = _around_the_key(size, stream)
    return b"%s%03d%s" % (before, key, after)


@cache
def _around_the_key(size: int, stream: bool) -> tuple[bytes, bytes]:
    """JSON takes its time for megabytes, and only their beginnings differ."""
    asked = {"model": MODEL, "stream": stream, "messages": [{"role": "user", "content": ""}]}
    text = "user 000 asks: " + "lorem ipsum " * (size // 12)
    asked["messages"] = [{"role": "user", "content": text[: size - len(json.dumps(asked))]}]
    before, _, after = json.dumps(asked).partition("000")
    return before.encode(), after.encode()


def request(content: bytes) -> bytes:
    """The whole request with such a body."""
    head = (
        f"POST {PATH} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
        f"content-length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


class Reader:
    """Finds the ends of messages."""

    def __init__(self) -> None:
        self.head = b""
        """Of the message that is under way or has just ended."""
        self._pending = b""
        self._in_body = False
        self._left = 0
        self._tail: bytes | None = None
        """The last bytes of a body in chunks; None if it has a length."""

    def feed(self, data: bytes) -> bool:
        """Takes what came; whether it ends a message."""
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
    """Runs it on the fastest event loop that is installed."""
    try:
        from uvloop import new_event_loop
    except ImportError:
        return asyncio.run(main)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)
