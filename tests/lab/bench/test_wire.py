"""The benchmark's subset of HTTP."""

from __future__ import annotations

import json

import pytest

from extproc.lab.bench.wire import MODEL, Reader, body, request

HEAD = b"HTTP/1.1 200 OK\r\n"
WITH_LENGTH = HEAD + b"Content-Length: 5\r\n\r\nhello"
IN_CHUNKS = HEAD + b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
WITHOUT_BODY = b"GET /health HTTP/1.1\r\nhost: bench\r\n\r\n"
EMPTY_CHUNKS = HEAD + b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n"


@pytest.mark.parametrize("message", [WITH_LENGTH, IN_CHUNKS, WITHOUT_BODY, EMPTY_CHUNKS])
class TestReader:
    def test_finds_the_end_of_a_whole_message(self, message: bytes) -> None:
        reader = Reader()
        assert reader.feed(message)
        assert message.startswith(reader.head)

    def test_finds_the_end_at_any_split_of_the_bytes(self, message: bytes) -> None:
        for cut in range(1, len(message)):
            reader = Reader()
            assert not reader.feed(message[:cut]), cut
            assert reader.feed(message[cut:]), cut

    def test_finds_ends_byte_by_byte(self, message: bytes) -> None:
        reader = Reader()
        for _ in range(2):
            ends = [reader.feed(message[i : i + 1]) for i in range(len(message))]
            assert ends == [False] * (len(message) - 1) + [True]


@pytest.mark.parametrize("size", [1_000, 32_000, 2_000_000])
def test_a_body_has_its_size_and_starts_with_its_key(size: int) -> None:
    content = body(size, 7)
    assert len(content) == size
    asked = json.loads(content)
    assert asked["model"] == MODEL
    assert asked["messages"][0]["content"].startswith("user 007 asks")


def test_a_request_has_a_content_length() -> None:
    reader = Reader()
    asked = request(body(1_000, 1))
    assert not reader.feed(asked[:-1])
    assert reader.feed(asked[-1:])
