"""An HTTP answer to a GET, put together from pieces as they come, within bounds.

What is out of the ordinary is a failure: an endpoint says what it is asked for, or it
counts as one that says nothing.
"""

from __future__ import annotations

import httptools

from extproc.adapters.vllm.readings import Failure, Result

MOST_BYTES = 2**20
"""Of a body that is read."""

# Servers send few headers.
_MOST_HEAD = 16_384
# A piece full of tiny chunks would take long.
_MOST_CHUNKS = 2000


class Answer:
    """One answer; `body` is None until it is whole."""

    __slots__ = (
        *("_chunks", "_delimited", "_head", "_length", "_parser", "_pieces"),
        *("body", "reusable"),
    )

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        # Bytes so far; None once all headers have come.
        self._head: int | None = 0
        # Whether the body's end is told otherwise than by the connection's.
        self._delimited = False
        self._chunks = 0
        self._length = 0
        self._pieces: list[bytes] = []
        self.body: bytes | None = None
        self.reusable = False
        """Whether its connection can be asked again."""

    def add(self, piece: bytes | memoryview) -> None:
        """The next bytes. Raises Failure."""
        if self.body is not None and piece:
            raise Failure(Result.GARBLED, "the answer is longer than it says")
        try:
            self._parser.feed_data(piece)
        except httptools.HttpParserError as error:
            # What our own methods raise comes wrapped.
            cause = error.__context__
            raise cause if isinstance(cause, Failure) else Failure(Result.GARBLED, error) from None
        if self._head is not None:
            self._head += len(piece)
            if self._head > _MOST_HEAD:
                raise Failure(Result.GARBLED, f"more than {_MOST_HEAD} bytes of headers")

    def end(self) -> None:
        """The server has closed the connection. Raises Failure where that was too early."""
        if self.body is None:
            if self._head is not None or self._delimited:
                raise Failure(Result.UNREACHABLE, "the connection was closed")
            self.body = b"".join(self._pieces)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header of the answer, or a trailer."""
        name = name.lower()
        if name in (b"content-length", b"transfer-encoding"):
            self._delimited = True
        if name == b"content-length" and int(value) > MOST_BYTES:
            raise _too_large()
        if name == b"transfer-encoding" and value.lower() != b"chunked":
            raise Failure(Result.GARBLED, "the answer has an unknown transfer encoding")
        if name == b"content-encoding" and value.lower() != b"identity":
            raise Failure(Result.GARBLED, "the answer is compressed, which was not asked for")

    def on_headers_complete(self) -> None:
        """All headers have come."""
        self._head = None
        status = self._parser.get_status_code()
        if status != 200:
            raise Failure(Result.STATUS, f"status {status}")

    def on_chunk_header(self) -> None:
        """A chunk begins."""
        self._chunks += 1
        if self._chunks > _MOST_CHUNKS:
            raise Failure(Result.TOO_LARGE, f"more than {_MOST_CHUNKS} chunks")

    def on_body(self, part: bytes) -> None:
        """The next bytes of the body."""
        self._length += len(part)
        if self._length > MOST_BYTES:
            raise _too_large()
        self._pieces.append(part)

    def on_message_begin(self) -> None:
        """An answer begins, and there was one already."""
        if self.body is not None:
            raise Failure(Result.GARBLED, "the answer is longer than it says")

    def on_message_complete(self) -> None:
        """The body is whole."""
        self.body = b"".join(self._pieces)
        self.reusable = self._parser.should_keep_alive()


def _too_large() -> Failure:
    return Failure(Result.TOO_LARGE, f"an answer of more than {MOST_BYTES} bytes")
