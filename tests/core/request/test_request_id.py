from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from extproc.core.request.request_id import request_id_of, response_headers
from tests.core.builders import thorough

UUID = "1c7b2f3e-9a4d-4c3b-8f0a-5d6e7f8a9b0c"


def test_envoys_own_ids_stay_as_they_are() -> None:
    assert request_id_of({"x-request-id": UUID.encode()}) == UUID


def test_there_may_be_none() -> None:
    assert request_id_of({}) == ""
    assert request_id_of({"x-request-id": b""}) == ""
    assert response_headers("", anthropic=True) == {}


@thorough
@given(st.binary() | st.binary().map(lambda raw: raw * 100))
def test_a_clients_id_is_made_short_and_harmless(raw: bytes) -> None:
    found = request_id_of({"x-request-id": raw})
    assert len(found) <= 128
    assert found.isascii()
    assert found == "" or found.isprintable()
    assert not set(found) & set(" \r\n\"\\'<>{}")
