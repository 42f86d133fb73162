"""An HTTP response to a GET, assembled from pieces as they arrive, within limits.

Any unusual response is a failure: a reading either succeeds completely or counts for nothing.
"""

from __future__ import annotations

import httptools

from extproc.adapters.vllm.readings import Failure, Result

MOST_BYTES = 2**20
"""Default limit of a body."""

# Limit of the bytes around the body: chunk sizes and trailers.
_MOST_FRAMING = 65_536
# Servers send few headers.
_MOST_HEAD = 16_384
# A response of many tiny chunks would take long to parse.
_MOST_CHUNKS = 2000


class HttpResponse:
    """One response; `body` is None until it is complete."""

    __slots__ = (
        *("_chunks", "_delimited", "_fed", "_head", "_length", "_may_be_cut", "_most_bytes"),
        *("_parser", "_pieces", "body", "reusable", "whole", "__weakref__"),
    )

    def __init__(self, most_bytes: int = MOST_BYTES, *, may_be_cut: bool = False) -> None:
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self._most_bytes = most_bytes
        self._may_be_cut = may_be_cut
        self._fed = 0
        # Bytes so far; None after the last header.
        self._head: int | None = 0
        # True if a header gives the end of the body, so that closing is not its end.
        self._delimited = False
        self._chunks = 0
        self._length = 0
        self._pieces: list[bytes] = []
        self.body: bytes | None = None
        self.reusable = False
        """True if the connection can carry another request."""
        self.whole = True
        """False if the body is only the beginning of the response's."""

    def add(self, piece: bytes | memoryview) -> None:
        """Parse the next bytes. Raises Failure."""
        if self._parser is None:
            if piece:
                raise Failure(Result.GARBLED, "the response is longer than its headers say")
            return
        try:
            self._parser.feed_data(piece)
            self._count(len(piece))
        except httptools.HttpParserError as error:
            self._release()
            # The parser wraps what the callbacks raise.
            cause = error.__context__
            raise cause if isinstance(cause, Failure) else Failure(Result.GARBLED, error) from None
        except Failure:
            self._release()
            raise
        if self.body is not None:
            self._release()

    def end(self) -> None:
        """Handle the end of the connection. Raises Failure if the response is incomplete."""
        if self.body is None:
            if self._head is not None or self._delimited:
                raise Failure(Result.UNREACHABLE, "the connection was closed")
            self.body = b"".join(self._pieces)
        self._release()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Check a header or a trailer."""
        name, value = name.lower(), value.strip().lower()
        if name in (b"content-length", b"transfer-encoding"):
            self._delimited = True
        if name == b"content-length" and int(value) > self._most_bytes and not self._may_be_cut:
            raise self._too_large()
        if name == b"transfer-encoding" and value != b"chunked":
            raise Failure(Result.GARBLED, "the response has an unknown transfer encoding")
        if name == b"content-encoding" and value != b"identity":
            raise Failure(Result.GARBLED, "the response is compressed, which was not requested")

    def on_headers_complete(self) -> None:
        """Check the status after the last header."""
        assert self._parser is not None
        self._head = None
        status = self._parser.get_status_code()
        if status != 200:
            raise Failure(Result.STATUS, f"status {status}", status)

    def on_chunk_header(self) -> None:
        """Count a chunk."""
        self._chunks += 1
        if self._chunks > _MOST_CHUNKS:
            raise Failure(Result.TOO_LARGE, f"more than {_MOST_CHUNKS} chunks")

    def on_body(self, part: bytes) -> None:
        """Keep the next bytes of the body."""
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
        """Refuse a second response."""
        if self.body is not None:
            raise Failure(Result.GARBLED, "the response is longer than its headers say")

    def on_message_complete(self) -> None:
        """Complete the body."""
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
        """Drop the parser, which refers to this object.

        A cycle would live until the next garbage collection, and there are 200 responses a second.
        """
        self._parser = None
        self._pieces = []

    def _too_large(self) -> Failure:
        return Failure(Result.TOO_LARGE, f"the response has more than {self._most_bytes} bytes")
