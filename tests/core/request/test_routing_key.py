from __future__ import annotations

from typing import Any

import pytest
import xxhash
from hypothesis import example, given
from hypothesis import strategies as st

from extproc.core.request.json_document import parse_document
from extproc.core.request.routing_key import prefix_is_final, ring_key
from extproc.core.schema import PrefixHashSpec
from tests.core.bodies import bodies, completions, cuts, documents, written
from tests.core.builders import model_spec, prefix_of, thorough

CHAT: dict[str, Any] = {
    "messages": [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "hello world"},
    ]
}


def source(prefix_source: str, length: int = 100) -> PrefixHashSpec:
    spec = model_spec(prefixSource=prefix_source, prefixCharLength=length)
    return spec.load_balancing.prefix_hash


@pytest.mark.parametrize(
    ("prefix_source", "prefix"),
    [
        ("FirstUserMessage", "hello world"),
        ("SystemAndFirstUserMessage", "be briefhello world"),
        ("PromptHead", "system\nbe brief\nuser\nhello world"),
    ],
)
def test_prefix_source_selects_the_text(prefix_source: str, prefix: str) -> None:
    assert prefix_of(CHAT, {}, source(prefix_source)) == prefix
    for length in range(1, 40):
        assert prefix_of(CHAT, {}, source(prefix_source, length)) == prefix[:length]


def test_length_is_in_characters_not_bytes() -> None:
    assert prefix_of({"prompt": "世界"}, {}, source("FirstUserMessage", 1)) == "世"


def test_default_source_is_the_first_user_message() -> None:
    assert prefix_of(CHAT, {}, PrefixHashSpec()) == "hello world"


@pytest.mark.parametrize(
    "prefix_source", ["FirstUserMessage", "SystemAndFirstUserMessage", "PromptHead"]
)
def test_body_without_a_prompt_has_no_prefix(prefix_source: str) -> None:
    assert prefix_of(None, {}, source(prefix_source)) == ""
    assert prefix_of({}, {}, source(prefix_source)) == ""


class TestHeaderSource:
    def test_value_is_not_shortened(self) -> None:
        session = "session-" * 50
        spec = source("Header:x-session-id", length=1)
        assert prefix_of(CHAT, {"x-session-id": session}, spec) == session

    def test_header_name_is_case_insensitive(self) -> None:
        assert prefix_of(CHAT, {"x-session-id": "s1"}, source("Header:X-Session-ID")) == "s1"

    def test_body_is_not_needed(self) -> None:
        assert prefix_of(None, {"x-session-id": "s1"}, source("Header:x-session-id")) == "s1"

    def test_missing_header_gives_no_prefix(self) -> None:
        assert prefix_of(CHAT, {}, source("Header:x-session-id")) == ""


class TestRingKey:
    def test_is_the_hash_of_adapter_and_prefix_without_a_separator(self) -> None:
        assert ring_key("sql", "hello") == xxhash.xxh64_intdigest(b"sqlhello")
        assert ring_key("", "世界") == xxhash.xxh64_intdigest("世界".encode())

    def test_of_a_virtual_nodes_text_is_its_position(self) -> None:
        assert ring_key("", "pod-a-10") == 689047897566398072

    def test_is_none_without_a_prefix(self) -> None:
        assert ring_key("", "") is None
        assert ring_key("sql", "") is None


class TestPrefixOfCutBody:
    """The prefix of a cut body is the beginning of the whole body's prefix."""

    @pytest.mark.parametrize("prefix_source", ["FirstUserMessage", "PromptHead"])
    @thorough
    @given(body=bodies(documents), length=st.integers(1, 60))
    @example(
        body=written({"messages": [{"content": "hi", "role": "user"}]}),
        length=60,
    ).via("a role that comes last and is cut")
    @example(
        body=written({"input": [{"type": "message", "role": "user", "content": "hi"}]}),
        length=60,
    ).via("a type that comes first and is cut")
    def test_is_the_beginning_of_the_whole_prefix(
        self, prefix_source: str, body: bytes, length: int
    ) -> None:
        spec = source(prefix_source, length)
        whole = prefix_of(parse_document(body, complete=True), {}, spec)
        for head in cuts(body):
            part = prefix_of(_document(head), {}, spec, cut=True)
            assert whole.startswith(part), head

    @thorough
    @given(body=bodies(completions), length=st.integers(1, 60))
    def test_is_the_whole_prefix_once_it_is_long_enough(self, body: bytes, length: int) -> None:
        spec = source("FirstUserMessage", length)
        whole = prefix_of(parse_document(body, complete=True), {}, spec)
        parts = [prefix_of(_document(head), {}, spec, cut=True) for head in cuts(body)]
        assert [len(part) for part in parts] == sorted(len(part) for part in parts)
        assert parts[-1] == whole

    @thorough
    @given(st.lists(st.text(max_size=9), min_size=2, max_size=2), st.integers(1, 30))
    def test_with_the_system_prompt_first_contains_the_beginning_of_both(
        self, texts: list[str], length: int
    ) -> None:
        system, user = texts
        spec = source("SystemAndFirstUserMessage", length)
        for body in (
            {"messages": [_message("system", system), _message("user", user)]},
            {"system": system, "messages": [_message("user", user)]},
            {"instructions": system, "input": [_message("user", user)]},
        ):
            for head in cuts(written(body)):
                assert (system + user)[:length].startswith(
                    prefix_of(_document(head), {}, spec, cut=True)
                )


class TestFinalPrefix:
    """A prefix that the rest of a cut body cannot change."""

    @pytest.mark.parametrize("prefix_source", ["FirstUserMessage", "PromptHead"])
    @thorough
    @given(body=bodies(documents), length=st.integers(1, 60))
    def test_is_the_prefix_of_the_whole_body(
        self, prefix_source: str, body: bytes, length: int
    ) -> None:
        spec = source(prefix_source, length)
        whole = prefix_of(parse_document(body, complete=True), {}, spec)
        for head in cuts(body):
            document = _document(head)
            prefix = prefix_of(document, {}, spec, cut=True)
            assert prefix == whole or not prefix_is_final(prefix, document, spec), head

    @thorough
    @given(st.lists(st.text(max_size=9), min_size=2, max_size=2), st.integers(1, 30))
    def test_is_the_prefix_of_the_whole_body_with_the_system_prompt_in_any_position(
        self, texts: list[str], length: int
    ) -> None:
        system, user = texts
        spec = source("SystemAndFirstUserMessage", length)
        turns = [_message("user", user), _message("assistant", "yes")]
        for body in (
            {"messages": [_message("system", system), *turns]},
            {"system": system, "messages": turns},
            {"messages": turns, "system": system},
            {"input": turns, "instructions": system, "stream": True},
        ):
            for head in cuts(written(body)):
                document = _document(head)
                prefix = prefix_of(document, {}, spec, cut=True)
                whole = (system + user)[:length]
                assert prefix == whole or not prefix_is_final(prefix, document, spec), head

    @pytest.mark.parametrize(
        ("prefix_source", "head", "settled"),
        [
            ("FirstUserMessage", b'{"messages": [{"role": "user", "content": "hell', False),
            ("FirstUserMessage", b'{"messages": [{"role": "user", "content": "hello wor', True),
            ("FirstUserMessage", b'{"messages": [{"role": "user", "content": "hi"}, {', True),
            ("FirstUserMessage", b'{"messages": [{"role": "user", "content": "hi"}], "n": 1', True),
            ("FirstUserMessage", b'{"messages": [{"role": "system", "content": "be b', False),
            ("FirstUserMessage", b'{"messages": [{"content": "hello world, how', False),
            ("FirstUserMessage", b'{"prompt": "hello wor', True),
            ("FirstUserMessage", b'{"prompt": "hi", "n": 1', True),
            ("FirstUserMessage", b'{"prompt": ["hi", "yo', True),
            ("FirstUserMessage", b'{"prompt": [1, 2', False),
            ("FirstUserMessage", b'{"input": "hi"', False),
            ("FirstUserMessage", b'{"stream": true', False),
            ("FirstUserMessage", b"{", False),
            ("PromptHead", b'{"messages": [{"role": "user", "content": "h', False),
            ("PromptHead", b'{"messages": [{"role": "user", "content": "hello', True),
            ("PromptHead", b'{"prompt": "hi", "n": 1', False),
            ("SystemAndFirstUserMessage", b'{"prompt": "hello world", "n": 1', False),
            ("SystemAndFirstUserMessage", b'{"system": "hello world', True),
            ("SystemAndFirstUserMessage", b'{"prompt": "hi", "system": "yo', False),
            ("SystemAndFirstUserMessage", b'{"prompt": "hi", "system": "yo", "n": 1', True),
            ("Header:x-session", b"{", True),
        ],
    )
    def test_is_recognized_in_a_cut_body(
        self, prefix_source: str, head: bytes, settled: bool
    ) -> None:
        spec, document = source(prefix_source, 9), _document(head)
        assert prefix_is_final(prefix_of(document, {}, spec, cut=True), document, spec) is settled

    def test_body_without_a_prompt_is_final(self) -> None:
        assert prefix_is_final("", None, source("PromptHead"))


def _message(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


def _document(head: bytes) -> dict[str, Any]:
    # Whitespace alone is refused. Every other beginning of an object is accepted.
    return parse_document(head, complete=False)


@thorough
@given(documents, st.integers(1, 50), st.sampled_from(["FirstUserMessage", "PromptHead"]))
def test_prefix_is_never_longer_than_configured(
    document: dict[str, Any], length: int, prefix_source: str
) -> None:
    prefix = prefix_of(document, {}, source(prefix_source, length))
    assert len(prefix) <= length
    assert (ring_key("", prefix) is None) == (prefix == "")
