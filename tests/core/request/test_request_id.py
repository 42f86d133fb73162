from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from extproc.core.request.request_id import request_id_of, response_headers
from tests.core.builders import thorough

UUID = "1c7b2f3e-9a4d-4c3b-8f0a-5d6e7f8a9b0c"


def test_ids_of_envoy_are_unchanged() -> None:
    assert request_id_of({"x-request-id": UUID.encode()}) == UUID


def test_missing_id_is_empty() -> None:
    assert request_id_of({}) == ""
    assert request_id_of({"x-request-id": b""}) == ""
    assert response_headers("", anthropic=True) == {}


@thorough
@given(st.binary() | st.binary().map(lambda raw: raw * 100))
def test_id_of_a_client_is_shortened_and_sanitized(raw: bytes) -> None:
    found = request_id_of({"x-request-id": raw})
    assert len(found) <= 128
    assert found.isascii()
    assert found == "" or found.isprintable()
    assert not set(found) & set(" \r\n\"\\'<>{}")
