from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.adapters.vllm.models_list import ModelsList, read_models
from extproc.adapters.vllm.names import MOST_ADAPTERS
from extproc.adapters.vllm.readings import Failure, Result
from extproc.core.schema import MAX_NAME_LENGTH
from tests.core.builders import thorough

PERMISSION = {"id": "modelperm-1", "object": "model_permission", "allow_sampling": True}


STRANGE_LENGTHS: tuple[object, ...] = (None, "4096", 0, -1, True, 4096.0, 2**50, [])


def card(name: object, parent: object, **more: object) -> dict[str, object]:
    """Return an entry in the form of vLLM."""
    known = {"object": "model", "created": 1_795_275_033, "owned_by": "vllm", "root": "/models/x"}
    return {"id": name, **known, "parent": parent, "permission": [PERMISSION], **more}


def listed(*cards: object) -> bytes:
    return json.dumps({"object": "list", "data": cards}).encode()


def test_adapters_are_the_models_that_have_a_parent() -> None:
    text = listed(
        card("base", None, max_model_len=4096),
        card("alias", None),
        card("sql", "base"),
        card("law", "base"),
    )
    assert read_models(text).adapters == {"sql", "law"}


@pytest.mark.parametrize(
    ("cards", "length"),
    [
        ([card("base", None, max_model_len=4096), card("alias", None, max_model_len=4096)], 4096),
        ([card("base", None, max_model_len=8192), card("other", None, max_model_len=4096)], 4096),
        ([card("base", None), card("sql", "base", max_model_len=4096)], None),
        *(([card("base", None, max_model_len=strange)], None) for strange in STRANGE_LENGTHS),
        ([], None),
    ],
)
def test_context_length_is_that_of_the_base_model(
    cards: list[dict[str, object]], length: int | None
) -> None:
    assert read_models(listed(*cards)).max_model_len == length


def test_list_can_have_no_adapters() -> None:
    assert read_models(listed(card("base", None))).adapters == frozenset()
    assert read_models(listed()) == ModelsList(frozenset(), None)


def test_entries_that_are_not_models_are_ignored() -> None:
    strange: tuple[object, ...] = (
        None,
        "sql",
        5,
        [],
        {},
        {"id": "no-parent"},
        {"parent": "base"},
        card(5, "base"),
    )
    found = read_models(listed(*strange, card("", "base"), card("sql", "base")))
    assert found == ModelsList(frozenset({"sql"}), None)


def test_number_and_length_of_names_are_limited() -> None:
    long = "x" * (MAX_NAME_LENGTH + 1)
    found = read_models(listed(card(long, "base"), card(long[1:], "base")))
    assert found.adapters == {long[1:]}
    many = (card(f"adapter-{i}", "base") for i in range(MOST_ADAPTERS + 5))
    assert len(read_models(listed(*many)).adapters) == MOST_ADAPTERS


@pytest.mark.parametrize("name", [" ", " b", "b ", "a\nb", "a\0b", "a\x7fb", "a\x85b"])
def test_names_that_a_document_cannot_have_are_ignored(name: str) -> None:
    assert read_models(listed(card(name, "base"))).adapters == frozenset()


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"not json",
        b"\xff\xfe",
        b"[]",
        b"null",
        b'{"object": "list"}',
        b'{"data": null}',
        b'{"data": {"id": "sql", "parent": "base"}}',
        b'{"detail": "Unauthorized"}',
        b'{"data": [{"id": "\\ud800", "parent": "base"}]}',
        b'{"data": ' + b"[" * 10_000,
        b'{"data": [' + b"1" * 10_000 + b"x",
    ],
)
def test_other_response_is_a_failure(text: bytes) -> None:
    with pytest.raises(Failure) as failure:
        read_models(text)
    assert failure.value.result is Result.GARBLED
    assert len(str(failure.value)) <= 200


@thorough
@given(st.binary() | st.recursive(st.none() | st.text(), st.lists).map(lambda x: listed(x)))
def test_any_bytes_are_a_list_or_a_failure(text: bytes) -> None:
    with suppress(Failure):
        assert all(read_models(text).adapters)
