from __future__ import annotations

import gc
import weakref
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.adapters.vllm.http_response import MOST_BYTES, HttpResponse
from extproc.adapters.vllm.readings import Failure, Result
from tests.core.builders import thorough

OK = b"HTTP/1.1 200 OK\r\n"
BODY = b"vllm:num_requests_waiting 1.0\r\n\r\n0\r\n\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


def by_length(body: bytes = BODY, more: bytes = b"") -> bytes:
    return OK + b"Server: uvicorn\r\nContent-Length: %d\r\n%s\r\n" % (len(body), more) + body


def by_chunks(*chunks: bytes, trailers: bytes = b"") -> bytes:
    framed = b"".join(b"%X;x=y\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks)
    return CHUNKED + framed + b"0\r\n" + trailers + b"\r\n"


def read(*pieces: bytes) -> HttpResponse:
    response = HttpResponse()
    for piece in pieces:
        response.add(piece)
    return response


def failure(*pieces: bytes) -> Result:
    """Return the failure of a response in these pieces, after which the server closes."""
    with pytest.raises(Failure) as raised:
        read(*pieces).end()
    return raised.value.result


WHOLE = {
    "by length": (by_length(), BODY),
    "empty": (by_length(b""), b""),
    "by chunks": (by_chunks(b"one", b"two\r\n", BODY), b"onetwo\r\n" + BODY),
    "by chunks, with trailers": (by_chunks(b"one", trailers=b"x: y\r\n"), b"one"),
    "by no chunk": (by_chunks(), b""),
    "identity encoding": (by_length(BODY, b"content-encoding: identity\r\n"), BODY),
}


@pytest.mark.parametrize("kind", WHOLE)
def test_response_is_complete_by_length_or_chunks(kind: str) -> None:
    text, body = WHOLE[kind]
    response = read(text)
    assert response.body == body
    assert response.reusable


@pytest.mark.parametrize("kind", WHOLE)
def test_pieces_can_end_anywhere(kind: str) -> None:
    text, body = WHOLE[kind]
    response = HttpResponse()
    for position in range(len(text)):
        assert response.body is None
        response.add(text[position : position + 1])
    assert response.body == body


@pytest.mark.parametrize("kind", WHOLE)
def test_response_that_ends_early_is_a_failure(kind: str) -> None:
    text, _ = WHOLE[kind]
    for position in range(len(text)):
        assert failure(text[:position]) is Result.UNREACHABLE


@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
def test_response_without_length_lasts_until_the_connection_closes(version: bytes) -> None:
    response = read(b"HTTP/%s 200 OK\r\nserver: x\r\n\r\nhalf" % version, b" and half")
    assert response.body is None
    response.end()
    assert response.body == b"half and half"
    assert not response.reusable


@pytest.mark.parametrize(
    "text",
    [
        by_length().replace(b"HTTP/1.1", b"HTTP/1.0"),
        by_length(BODY, b"Connection: close\r\n"),
        by_length(BODY, b"connection: x, Close\r\n"),
    ],
)
def test_connection_is_not_reused_if_it_closes(text: bytes) -> None:
    response = read(text)
    assert response.body == BODY
    assert not response.reusable


@pytest.mark.parametrize("status", [b"204 No Content", b"302 Found", b"404", b"500 Oops", b"100 C"])
def test_any_other_status_is_a_failure_at_once(status: bytes) -> None:
    with pytest.raises(Failure, match=f"status {status[:3].decode()}") as raised:
        read(b"HTTP/1.1 %s\r\nlocation: http://elsewhere/\r\n\r\n" % status)
    assert raised.value.result is Result.STATUS


@pytest.mark.parametrize(
    "text",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
        b"HTTP/2 200 OK\r\n\r\n",
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"\0" * 20_000,
        OK + b"x: y\r\n" * 5_000,
        OK + b"content-length: many\r\n\r\n",
        OK + b"content-length: -1\r\n\r\n",
        OK + b"content-length: %s\r\n\r\n" % (b"9" * 5_000),
        OK + b"transfer-encoding: gzip, chunked\r\n\r\n",
        by_length(BODY, b"Content-Encoding: gzip\r\n"),
        by_length() + b"more",
        by_chunks(b"one").replace(b"chunked", b"chunked\r\nContent-Length: 9"),
        CHUNKED + b"many\r\nbytes\r\n\r\n",
        CHUNKED + b"-1\r\n\r\n",
        CHUNKED + b"2\r\nfour\r\n\r\n",
    ],
)
def test_invalid_http_is_a_failure(text: bytes) -> None:
    assert failure(text) is Result.GARBLED


def test_bytes_after_the_end_are_a_failure() -> None:
    assert failure(by_length(), b"HTTP/1.1 200 OK") is Result.GARBLED
    assert failure(by_length(b""), by_length(b"")) is Result.GARBLED


def test_response_can_have_one_mebibyte_at_most() -> None:
    body = b"x" * MOST_BYTES
    assert read(by_length(body)).body == body
    assert failure(by_length(body + b"x")[:100]) is Result.TOO_LARGE
    assert failure(OK + b"\r\n", body, b"x") is Result.TOO_LARGE
    assert failure(CHUNKED, b"1\r\nx\r\n" * 3_000) is Result.TOO_LARGE
    assert failure(CHUNKED, b"fffffff\r\n", body, b"x") is Result.TOO_LARGE


@thorough
@given(st.lists(st.binary() | st.sampled_from([OK, b"\r\n", CHUNKED, b"4\r\n", b"0\r\n\r\n"])))
def test_any_bytes_are_a_response_or_a_failure(pieces: list[bytes]) -> None:
    try:
        response = read(*pieces)
        response.end()
    except Failure:
        return
    assert response.body is not None


def test_response_that_may_be_cut_ends_at_the_limit() -> None:
    body = b"x" * (MOST_BYTES + 99)
    for text in (by_length(body), by_chunks(body), OK + b"\r\n" + body):
        response = HttpResponse(may_be_cut=True)
        response.add(text)
        assert response.body == body[:MOST_BYTES]
        assert not response.whole
        assert not response.reusable


@pytest.mark.parametrize("endless", [b"0\r\nx: ", b"0\r\nx: y\r\n", b"0\r\n", b"5;x="], ids=repr)
def test_endless_framing_is_too_large(endless: bytes) -> None:
    response = HttpResponse(1000)
    response.add(CHUNKED + endless)
    with suppress(Failure):
        for _ in range(10):
            response.add(b"x: y" * 2_500)
        raise AssertionError("the response never ends")


def test_responses_leave_no_reference_cycles() -> None:
    gc.collect()
    gc.disable()
    try:
        for text in (by_length(), by_chunks(b"one"), OK + b"x: y\r\n" * 5_000):
            response = HttpResponse()
            with suppress(Failure):
                response.add(text)
            gone = weakref.ref(response)
            del response
            assert gone() is None
    finally:
        gc.enable()
