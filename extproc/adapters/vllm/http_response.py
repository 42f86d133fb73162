"""An HTTP answer to a GET, put together from pieces as they come, within bounds.

What is out of the ordinary is a failure: an endpoint says what it is asked for, or it
counts as one that says nothing.
"""

from __future__ import annotations

import httptools

from extproc.adapters.vllm.readings import Failure, Result

MOST_BYTES = 2**20
"""Of a body that is read."""

# Of chunk sizes, trailers and whatever else may stand between the bytes of a body.
_MOST_FRAMING = 65_536
# Servers send few headers.
_MOST_HEAD = 16_384
# A piece full of tiny chunks would take long.
_MOST_CHUNKS = 2000


class HttpResponse:
    """One answer; `body` is None until it is whole."""

    __slots__ = (
        *("_chunks", "_delimited", "_fed", "_head", "_length", "_may_be_cut", "_most_bytes"),
        *("_parser", "_pieces", "body", "reusable", "whole", "__weakref__"),
    )

    def __init__(self, most_bytes: int = MOST_BYTES, *, may_be_cut: bool = False) -> None:
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self._most_bytes = most_bytes
        self._may_be_cut = may_be_cut
        self._fed = 0
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
        self.whole = True
        """Whether the body is all of it, and not only its beginning."""

    def add(self, piece: bytes | memoryview) -> None:
        """The next bytes. Raises Failure."""
        if self._parser is None:
            if piece:
                raise Failure(Result.GARBLED, "the answer is longer than it says")
            return
        try:
            self._parser.feed_data(piece)
            self._count(len(piece))
        except httptools.HttpParserError as error:
            self._release()
            # What our own methods raise comes wrapped.
            cause = error.__context__
            raise cause if isinstance(cause, Failure) else Failure(Result.GARBLED, error) from None
        except Failure:
            self._release()
            raise
        if self.body is not None:
            self._release()

    def end(self) -> None:
        """The server has closed the connection. Raises Failure where that was too early."""
        if self.body is None:
            if self._head is not None or self._delimited:
                raise Failure(Result.UNREACHABLE, "the connection was closed")
            self.body = b"".join(self._pieces)
        self._release()

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header of the answer, or a trailer."""
        name, value = name.lower(), value.strip().lower()
        if name in (b"content-length", b"transfer-encoding"):
            self._delimited = True
        if name == b"content-length" and int(value) > self._most_bytes and not self._may_be_cut:
            raise self._too_large()
        if name == b"transfer-encoding" and value != b"chunked":
            raise Failure(Result.GARBLED, "the answer has an unknown transfer encoding")
        if name == b"content-encoding" and value != b"identity":
            raise Failure(Result.GARBLED, "the answer is compressed, which was not asked for")

    def on_headers_complete(self) -> None:
        """All headers have come."""
        assert self._parser is not None
        self._head = None
        status = self._parser.get_status_code()
        if status != 200:
            raise Failure(Result.STATUS, f"status {status}", status)

    def on_chunk_header(self) -> None:
        """A chunk begins."""
        self._chunks += 1
        if self._chunks > _MOST_CHUNKS:
            raise Failure(Result.TOO_LARGE, f"more than {_MOST_CHUNKS} chunks")

    def on_body(self, part: bytes) -> None:
        """The next bytes of the body."""
        if self.body is not None:
            return
        self._length += len(part)
        self._pieces.append(part)
        if self._length > self._most_bytes:
            if not self._may_be_cut:
                raise self._too_large()
            self.whole = False
            self.body = b"".join(self._pieces)[: self._most_bytes]

    def on_message_begin(self) -> None:
        """An answer begins, and there was one already."""
        if self.body is not None:
            raise Failure(Result.GARBLED, "the answer is longer than it says")

    def on_message_complete(self) -> None:
        """The body is whole."""
        if self.body is None and self._parser is not None:
            self.body = b"".join(self._pieces)
            self.reusable = self._parser.should_keep_alive()

    def _count(self, length: int) -> None:
        self._fed += length
        if self._fed > self._most_bytes + _MOST_FRAMING and self.body is None:
            raise self._too_large()
        if self._head is not None:
            self._head += length
            if self._head > _MOST_HEAD:
                raise Failure(Result.GARBLED, f"more than {_MOST_HEAD} bytes of headers")

    def _release(self) -> None:
        """Nothing more is read. The parser refers to us: together we would wait for a collection
        of garbage, and there are two hundred of us a second.
        """
        self._parser = None
        self._pieces = []

    def _too_large(self) -> Failure:
        return Failure(Result.TOO_LARGE, f"an answer of more than {self._most_bytes} bytes")
