from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest

from extproc.compiled import COMPILED
from extproc.core.conversation.head import HEAD_LIMIT, Head
from extproc.core.conversation.request import Request
from extproc.core.request.blocks import MAX_PROMPT_BYTES, Prompt, prompt_of
from extproc.core.request.json_body import JsonBody, read_json_body
from extproc.core.request.json_document import parse_document
from extproc.core.request.paths import Api
from extproc.core.request.refusals import InvalidRequest, ModelNotFound
from extproc.core.routing.decision import Decision
from extproc.core.routing.resolved_request import ResolvedRequest
from tests.core.builders import model_spec, router

LLAMA = model_spec("llama", prefixCharLength=20)
QWEN = model_spec("qwen", endpoints=["10.0.1.1:8000"], prefixSource="Header:x-session")


def head(api: Api = Api.GENERATE, **headers: str) -> Head:
    raw = {name.replace("_", "-"): value.encode() for name, value in headers.items()}
    return Head(Request(router(LLAMA, QWEN), api, raw))


def model_of(resolved: ResolvedRequest | None) -> str | None:
    return resolved.model.spec.name if resolved else None


def chat(**fields: Any) -> bytes:
    """Return a body whose beginning is sufficient, because it shows that there is no salt."""
    return json.dumps({"model": "llama", "cache_salt": None, **fields}).encode()


TALK = {"messages": [{"role": "user", "content": "tell me of the sea " * 9_000}]}


class TestSufficientHead:
    def test_is_sufficient_at_the_end_of_the_body(self) -> None:
        assert model_of(head().end(chat(prompt="hi"))) == "llama"

    def test_is_read_whole_at_the_end_of_the_body(self) -> None:
        late = json.dumps({**TALK, "model": "llama"}).encode()
        assert len(late) > HEAD_LIMIT
        assert model_of(head().end(late)) == "llama"

    def test_has_model_and_prefix(self) -> None:
        held = head()
        body = chat(**TALK)
        assert held.add(body[:40]) is None
        resolved = held.add(body[40:200])
        assert resolved is not None
        assert (model_of(resolved), resolved.prefix) == ("llama", "tell me of the sea tell"[:20])

    def test_has_the_model_if_a_header_is_the_key(self) -> None:
        held = head(x_session="s-1")
        resolved = held.add(b'{"model": "qwen", "mess')
        assert resolved is not None
        assert (model_of(resolved), resolved.prefix) == ("qwen", "s-1")

    def test_has_the_model_if_the_api_has_no_prefix(self) -> None:
        assert model_of(head(Api.MODEL_ONLY).add(b'{"model": "llama", "input": "he')) == "llama"

    def test_has_the_model_of_a_form(self) -> None:
        held = head(Api.FORM, content_type="multipart/form-data; boundary=XX")
        field = b'--XX\r\nContent-Disposition: form-data; name="model"\r\n\r\nlla'
        assert held.add(field) is None
        assert model_of(held.add(b"ma\r\n--XX\r\n" + b"-" * len(field))) == "llama"

    def test_has_a_part_of_the_prefix_at_the_limit(self) -> None:
        padding = {"metadata": "x" * HEAD_LIMIT}
        held = head()
        body = chat(messages=[{"role": "user", "content": "hi"}], **padding)
        assert model_of(held.add(body[:HEAD_LIMIT])) == "llama"

    def test_uses_the_model_header_at_the_limit(self) -> None:
        body = json.dumps({**TALK, "model": "qwen"}).encode()
        held = head(x_model="llama")
        assert held.add(body[: HEAD_LIMIT - 1]) is None
        assert model_of(held.add(body[HEAD_LIMIT - 1 :])) == "llama"


class TestInsufficientHead:
    @pytest.mark.parametrize("beginning", [b"", b" ", b"\r\n\t ", b"{", b'{"model": "lla'])
    def test_lacks_the_model(self, beginning: bytes) -> None:
        assert head(x_model="llama").add(beginning) is None

    def test_has_a_prefix_that_may_grow(self) -> None:
        body = b'{"model": "llama", "messages": [{"role": "user", "content": "tell me'
        assert head().add(body) is None


class TestRefusal:
    def test_comes_as_soon_as_the_body_is_malformed(self) -> None:
        with pytest.raises(InvalidRequest):
            head().add(b"hello")
        with pytest.raises(ModelNotFound):
            head().add(b'{"model": "gpt", "mess')

    def test_comes_at_the_end_of_a_truncated_body(self) -> None:
        held = head()
        assert held.add(b'{"model": "llama"') is None
        with pytest.raises(InvalidRequest):
            held.end(b", ")

    def test_comes_at_the_limit_and_names_it(self) -> None:
        body = json.dumps({**TALK, "model": "llama"}).encode()
        held = head()
        with pytest.raises(InvalidRequest, match=f"first {HEAD_LIMIT} bytes"):
            held.add(body)

    def test_comes_for_an_empty_body(self) -> None:
        with pytest.raises(InvalidRequest, match="no body"):
            head().end()


class TestStrategyThatReadsPrompts:
    """A strategy that needs as much of the prompt as possible."""

    REMEMBERS = model_spec("remembers", strategy="PrefixCache", prefixCharLength=20)

    def head(self, **headers: str) -> Head:
        raw = {name.replace("_", "-"): value.encode() for name, value in headers.items()}
        return Head(Request(router(self.REMEMBERS, LLAMA), Api.GENERATE, raw))

    def placed(self, body: bytes, length: str) -> Prompt:
        """Return the prompt of a body with this content length."""
        resolved = self.head(content_length=length).add(body[:HEAD_LIMIT])
        assert resolved is not None
        assert resolved.prompt is not None
        return resolved.prompt

    BODY = chat(**{"model": "remembers", **TALK})

    def test_gets_all_of_a_small_body(self) -> None:
        held = self.head()
        body = chat(model="remembers", prompt="tell me of the sea " * 1000)
        # Model and prefix are known by then: sufficient for PrefixHash.
        assert held.add(body[:10_000]) is None
        assert held.add(body[10_000:]) is None
        resolved = held.end()
        assert resolved.prompt == prompt_of(parse_document(body, complete=True), "remembers")

    def test_gets_the_head_of_a_large_body(self) -> None:
        held = self.head()
        for start in range(0, HEAD_LIMIT - 1, 1000):
            assert held.add(self.BODY[start : min(start + 1000, HEAD_LIMIT - 1)]) is None
        resolved = held.add(self.BODY[HEAD_LIMIT - 1 :])
        assert resolved is not None
        seen = parse_document(self.BODY[:HEAD_LIMIT], complete=False)
        assert resolved.prompt == prompt_of(seen, "remembers", cut=True)

    def test_does_not_delay_other_models(self) -> None:
        body = chat(model="llama", **TALK)
        resolved = self.head().add(body[:300])
        assert model_of(resolved) == "llama"

    def test_gets_the_size_of_a_cut_body(self) -> None:
        assert len(self.BODY) > 2 * HEAD_LIMIT
        whole = prompt_of(parse_document(self.BODY, complete=True), "remembers")
        prompt = self.placed(self.BODY, str(len(self.BODY)))
        assert prompt.bytes == pytest.approx(whole.bytes, rel=0.01)
        assert prompt.blocks == whole.blocks[: len(prompt.blocks)]

    @pytest.mark.parametrize(
        "length",
        [
            *("", "0", "1", "-1", "+99999999", "1e9", "99999.9", "0x7fffffff", "many", "NaN"),
            *("9" * 13, "9" * 5000, "٩٩٩٩٩٩٩", "99999999 ", "1,000,000", "²", "\x00", "\xff"),
        ],
    )
    def test_ignores_malformed_lengths(self, length: str) -> None:
        assert self.placed(self.BODY, length).bytes < HEAD_LIMIT

    @pytest.mark.parametrize("length", ["1000000000", "9" * 12])
    def test_limits_the_size_of_a_prompt(self, length: str) -> None:
        prompt = self.placed(self.BODY, length)
        assert HEAD_LIMIT < prompt.bytes <= MAX_PROMPT_BYTES
        assert prompt.blocks == self.placed(self.BODY, "").blocks

    @pytest.mark.parametrize("length", ["1", "1000000", "9" * 12])
    def test_ignores_the_length_of_a_complete_body(self, length: str) -> None:
        body = chat(model="remembers", prompt="tell me of the sea " * 100)
        whole = prompt_of(parse_document(body, complete=True), "remembers")
        assert self.head(content_length=length).end(body).prompt == whole


def _renamed() -> Decision:
    serving = router(model_spec("llama"))
    return serving.decide(serving.resolve("llama", None, {})._replace(rename="qwen"))


RENAMED = _renamed()


def test_head_holds_all_parts() -> None:
    held = head()
    body = chat(**TALK)
    assert held.add(body[:10]) is None
    assert held.add(body[10:]) is not None
    assert held.held == body


def test_parsed_part_is_renamed() -> None:
    for padding in ("", "x" * HEAD_LIMIT):
        held = head()
        assert held.add(chat(prompt="once upon a time in the west", padding=padding)) is not None
        assert held.edited(RENAMED) == held.held.replace(b"llama", b"qwen")


def test_unparsed_part_is_not_renamed() -> None:
    late = json.dumps({"prompt": "x" * HEAD_LIMIT, "model": "llama"}).encode()
    held = head(x_model="llama")
    assert held.add(late) is not None
    assert held.edited(RENAMED) == late


@pytest.mark.skipif(COMPILED, reason="nothing here can stand in for what is compiled")
def test_slow_body_is_parsed_only_after_doubling(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []

    def counting(body: bytes, *, complete: bool, fields: Iterable[str]) -> JsonBody:
        sizes.append(len(body))
        return read_json_body(body, complete=complete, fields=fields)

    monkeypatch.setattr("extproc.core.conversation.request.read_json_body", counting)
    body = json.dumps({**TALK, "model": "llama"}).encode()
    held = head(x_model="llama")
    for i in range(HEAD_LIMIT):
        assert (held.add(body[i : i + 1]) is None) == (i < HEAD_LIMIT - 1)
    assert sizes == [2**i for i in range(17)]
