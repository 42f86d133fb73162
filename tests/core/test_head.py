from __future__ import annotations

import json
from typing import Any

import pytest

from extproc.core.body import Document, read_json
from extproc.core.errors import InvalidRequest, ModelNotFound
from extproc.core.head import HEAD_LIMIT, Head
from extproc.core.paths import Api
from extproc.core.request import Request
from extproc.core.router import Placement
from tests.core.builders import model_spec, router

LLAMA = model_spec("llama", prefixCharLength=20)
QWEN = model_spec("qwen", endpoints=["10.0.1.1:8000"], prefixSource="Header:x-session")


def head(api: Api = Api.GENERATE, **headers: str) -> Head:
    raw = {name.replace("_", "-"): value.encode() for name, value in headers.items()}
    return Head(Request(router(LLAMA, QWEN), api, raw))


def model_of(placement: Placement | None) -> str | None:
    return placement.model.spec.name if placement else None


def chat(**fields: Any) -> bytes:
    return json.dumps({"model": "llama", **fields}).encode()


TALK = {"messages": [{"role": "user", "content": "tell me of the sea " * 9_000}]}


class TestItIsEnough:
    def test_at_the_end_of_the_body(self) -> None:
        assert model_of(head().end(chat(prompt="hi"))) == "llama"

    def test_once_model_and_prefix_are_read(self) -> None:
        held = head()
        body = chat(**TALK)
        assert held.add(body[:40]) is None
        placement = held.add(body[40:200])
        assert placement is not None
        assert (model_of(placement), placement.prefix) == ("llama", "tell me of the sea tell"[:20])

    def test_once_the_model_is_read_where_a_header_is_the_key(self) -> None:
        held = head(x_session="s-1")
        placement = held.add(b'{"model": "qwen", "mess')
        assert placement is not None
        assert (model_of(placement), placement.prefix) == ("qwen", "s-1")

    def test_once_the_model_is_read_where_the_api_has_no_prefix(self) -> None:
        assert model_of(head(Api.MODEL_ONLY).add(b'{"model": "llama", "input": "he')) == "llama"

    def test_once_the_form_has_told_its_model(self) -> None:
        held = head(Api.FORM, content_type="multipart/form-data; boundary=XX")
        field = b'--XX\r\nContent-Disposition: form-data; name="model"\r\n\r\nlla'
        assert held.add(field) is None
        assert model_of(held.add(b"ma\r\n--XX\r\n" + b"-" * len(field))) == "llama"

    def test_at_the_limit_with_as_much_of_the_prefix_as_there_is(self) -> None:
        padding = {"metadata": "x" * HEAD_LIMIT}
        held = head()
        body = chat(messages=[{"role": "user", "content": "hi"}], **padding)
        assert model_of(held.add(body[:HEAD_LIMIT])) == "llama"

    def test_at_the_limit_by_a_header_where_the_body_has_not_named_its_model(self) -> None:
        body = json.dumps({**TALK, "model": "qwen"}).encode()
        held = head(x_model="llama")
        assert held.add(body[: HEAD_LIMIT - 1]) is None
        assert model_of(held.add(body[HEAD_LIMIT - 1 :])) == "llama"


class TestItIsNotEnough:
    @pytest.mark.parametrize("beginning", [b"", b" ", b"\r\n\t ", b"{", b'{"model": "lla'])
    def test_without_the_model(self, beginning: bytes) -> None:
        assert head(x_model="llama").add(beginning) is None

    def test_while_the_prefix_may_grow(self) -> None:
        body = b'{"model": "llama", "messages": [{"role": "user", "content": "tell me'
        assert head().add(body) is None


class TestARefusal:
    def test_comes_as_soon_as_nothing_could_make_it_a_request(self) -> None:
        with pytest.raises(InvalidRequest):
            head().add(b"hello")
        with pytest.raises(ModelNotFound):
            head().add(b'{"model": "gpt", "mess')

    def test_comes_at_the_end_for_a_body_that_is_cut_short(self) -> None:
        held = head()
        assert held.add(b'{"model": "llama"') is None
        with pytest.raises(InvalidRequest):
            held.end(b", ")

    def test_comes_at_the_limit_and_says_how_much_was_seen(self) -> None:
        body = json.dumps({**TALK, "model": "llama"}).encode()
        held = head()
        with pytest.raises(InvalidRequest, match=f"first {HEAD_LIMIT} bytes"):
            held.add(body)
        held = head()
        with pytest.raises(InvalidRequest, match=f"first {HEAD_LIMIT} bytes"):
            held.end(body)

    def test_comes_for_no_body_at_all(self) -> None:
        with pytest.raises(InvalidRequest, match="no body"):
            head().end()


def test_everything_fed_is_held_also_beyond_what_is_read() -> None:
    held = head()
    body = chat(**TALK)
    assert held.add(body[:10]) is None
    assert held.add(body[10:]) is not None
    assert held.held == body


def test_what_was_read_of_it_is_given_back_under_another_name() -> None:
    for padding in ("", "x" * HEAD_LIMIT):
        held = head()
        assert held.add(chat(prompt="once upon a time in the west", padding=padding)) is not None
        assert held.renamed("qwen") == held.held.replace(b"llama", b"qwen")


def test_what_was_not_read_of_it_keeps_its_name() -> None:
    late = json.dumps({"prompt": "x" * HEAD_LIMIT, "model": "llama"}).encode()
    held = head(x_model="llama")
    assert held.add(late) is not None
    assert held.renamed("qwen") == late


def test_a_trickle_is_read_no_more_often_than_it_doubles(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []

    def counting(body: bytes, *, complete: bool) -> Document:
        sizes.append(len(body))
        return read_json(body, complete=complete)

    monkeypatch.setattr("extproc.core.request.read_json", counting)
    body = json.dumps({**TALK, "model": "llama"}).encode()
    held = head(x_model="llama")
    for i in range(HEAD_LIMIT):
        assert (held.add(body[i : i + 1]) is None) == (i < HEAD_LIMIT - 1)
    assert sizes == [2**i for i in range(17)]
