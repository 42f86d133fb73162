"""Session ids in headers and bodies, as current agents send them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from extproc.core.conversation.events import Event, Kind
from extproc.core.conversation.request import Request
from extproc.core.conversation.state_machine import Conversation
from extproc.core.request.json_document import parse_document
from extproc.core.request.routing_key import prefix_is_final, read_prefix, ring_key
from extproc.core.request.session import MAX_ID_LENGTH
from extproc.core.routing.decision import Decision
from extproc.core.routing.resolved_request import ResolvedRequest
from extproc.core.schema import PrefixHashSpec, SplitSpec
from tests.core.bodies import cuts
from tests.core.builders import brief, catalog, model_spec, prefix_of, router, split_spec

Json = dict[str, Any]

CHAT: Json = {"messages": [{"role": "user", "content": "hello"}]}
METADATA = {"user_id": '{"device_id": "d", "session_id": "s-1"}'}


def sessions(*sources: str, length: int = 100) -> PrefixHashSpec:
    """Return the settings of a key, with the default sources if none are given."""
    listed: Json = {"sessionSources": list(sources)} if sources else {}
    spec = model_spec(prefixSource="Session", prefixCharLength=length, **listed)
    return spec.load_balancing.prefix_hash


class TestDefaultSources:
    @pytest.mark.parametrize(
        ("headers", "fields", "source"),
        [
            ({"x-claude-code-session-id": "s-1"}, {"metadata": METADATA}, "Claude Code"),
            ({"x-session-affinity": "s-1", "x-session-id": "s-1"}, {}, "OpenCode"),
            ({"session-id": "s-1"}, {"prompt_cache_key": "other"}, "Codex"),
            ({"session_id": "s-1"}, {}, "older Codex"),
            ({"x-session-id": "s-1"}, {}, "a gateway"),
            ({"x-opencode-session": "s-1"}, {}, "pi"),
            ({}, {"prompt_cache_key": "s-1", "user": "u"}, "OpenAI's clients"),
        ],
    )
    def test_find_the_sessions_of_agents(
        self, headers: dict[str, str], fields: Json, source: str
    ) -> None:
        assert prefix_of({**CHAT, **fields}, headers, sessions()) == "s-1", source

    def test_find_claude_codes_session_in_its_metadata(self) -> None:
        found = read_prefix({**CHAT, "metadata": METADATA}, {}, sessions())
        assert found == (METADATA["user_id"], "Body:metadata.user_id")

    @pytest.mark.parametrize(
        "fields", [{"user": "acme"}, {"safety_identifier": "acme"}, {"previous_response_id": "r"}]
    )
    def test_exclude_fields_that_identify_a_company_or_a_turn(self, fields: Json) -> None:
        assert prefix_of({**CHAT, **fields}, {}, sessions()) == "hello"


class TestSources:
    def test_first_source_with_a_value_wins(self) -> None:
        document, headers = {**CHAT, "user": "u"}, {"x-a": "a", "x-b": "b"}
        for sources, value in (
            (["Header:x-b", "Header:x-a", "Body:user"], "b"),
            (["Body:user", "Header:x-a"], "u"),
            (["Header:x-none", "Body:none", "Header:X-A"], "a"),
        ):
            assert prefix_of(document, headers, sessions(*sources)) == value

    def test_empty_values_are_skipped(self) -> None:
        sources = ("Header:x-a", "Body:user")
        assert prefix_of({**CHAT, "user": "u"}, {"x-a": ""}, sessions(*sources)) == "u"

    @pytest.mark.parametrize(
        ("value", "text"),
        [
            *[("u", "u"), (7, "7"), ("", "hello"), (None, "hello"), (True, "hello")],
            *[(1.5, "hello"), ({"id": "x"}, "hello"), (["x"], "hello"), (10**400, "hello")],
            *[("x" * MAX_ID_LENGTH, "x" * MAX_ID_LENGTH), ("x" * (MAX_ID_LENGTH + 1), "hello")],
        ],
    )
    def test_body_values_are_strings_or_numbers(self, value: Any, text: str) -> None:
        assert prefix_of({**CHAT, "user": value}, {}, sessions("Body:user")) == text

    @pytest.mark.parametrize(
        ("value", "text"),
        [({"id": "c"}, "c"), ({"x": "c"}, "hello"), ("c", "hello"), ([], "hello")],
    )
    def test_body_source_can_be_a_member_of_an_object(self, value: Any, text: str) -> None:
        spec = sessions("Body:conversation.id")
        assert prefix_of({**CHAT, "conversation": value}, {}, spec) == text

    def test_ids_are_not_shortened_to_the_prefix_length(self) -> None:
        assert prefix_of(CHAT, {"x-session-id": "s" * 500}, sessions(length=3)) == "s" * 500
        assert prefix_of(CHAT, {}, sessions(length=3)) == "hel"

    def test_header_source_needs_no_body(self) -> None:
        assert prefix_of(None, {"x-session-id": "s"}, sessions()) == "s"
        assert prefix_of(None, {}, sessions()) == ""

    def test_catalog_lists_headers_and_fields_of_all_sources(self) -> None:
        model = model_spec(
            prefixSource="Session", sessionSources=["Header:X-A", "Body:user", "Body:a.b"]
        )
        serving = catalog(model)
        assert serving.key_headers == {"x-a"}
        assert serving.key_fields == {"user", "a"}
        assert not catalog(model_spec()).key_headers | catalog(model_spec()).key_fields


class TestSplit:
    def test_session_sticks_to_its_target(self) -> None:
        serving = router(
            model_spec("a"), model_spec("b"), split_spec("canary", sticky_by="Session", a=1, b=1)
        )

        def went(number: int, content: str) -> str:
            document = {"messages": [{"role": "user", "content": content}]}
            headers = {"x-session-id": f"session {number}"}
            return serving.resolve("canary", document, headers).model.spec.name

        first = [went(number, "one") for number in range(40)]
        assert set(first) == {"a", "b"}
        assert [went(number, "another") for number in range(40)] == first

    def test_can_have_its_own_sources(self) -> None:
        split = {"targets": [{"model": "a", "weight": 1}], "sessionSources": ["Body:user"]}
        spec = SplitSpec.model_validate({**split, "stickyBy": "Session"})
        assert prefix_of({**CHAT, "user": "u"}, {"x-session-id": "s"}, spec.key) == "u"
        with pytest.raises(ValidationError, match="'sessionSources' needs"):
            SplitSpec.model_validate(split)


class TestCutBody:
    FIELDS = st.permutations(
        [
            ("model", "llama"),
            ("messages", CHAT["messages"]),
            ("prompt_cache_key", "key-1"),
            ("metadata", {"user_id": "user-1"}),
            ("stream", True),
        ]
    )

    @brief
    @given(FIELDS, st.sets(st.sampled_from(["prompt_cache_key", "metadata"])))
    def test_is_final_only_if_no_other_session_can_follow(
        self, fields: list[tuple[str, Any]], missing: set[str]
    ) -> None:
        body = json.dumps({k: v for k, v in fields if k not in missing}).encode()
        spec = sessions("Header:x-a", "Body:prompt_cache_key", "Body:metadata.user_id")
        whole = read_prefix(parse_document(body, complete=True), {}, spec)
        for head in cuts(body):
            document = parse_document(head, complete=False)
            found = read_prefix(document, {}, spec, cut=True)
            assert found == whole or not prefix_is_final(found[0], document, spec, found[1])

    def test_is_final_with_a_session_in_a_header(self) -> None:
        found = read_prefix({}, {"x-session-id": "s"}, sessions())
        assert prefix_is_final(found[0], {}, sessions(), found[1])


class TestLargeBody:
    @pytest.mark.parametrize("prompt", ["word " * 60_000, "QUJD" * 800_000, "\u4e16" * 800_000])
    @pytest.mark.parametrize("strategy", ["PrefixHash", "PrefixCache"])
    def test_session_after_the_prompt_is_found(self, prompt: str, strategy: str) -> None:
        spec = model_spec(strategy=strategy, prefixSource="Session")
        body = {"model": "llama", "messages": [{"role": "user", "content": prompt}]}
        late = json.dumps({**body, "metadata": {"user_id": "u"}, "prompt_cache_key": "s"}).encode()
        placed = Request(router(spec)).resolve(late, complete=True)
        assert (placed.prefix, placed.session) == ("s", "Body:prompt_cache_key")
        assert Request(router(spec)).resolve(json.dumps(body).encode(), complete=True).session == ""


def resolved(spec: Json, headers: dict[str, str], document: Json = CHAT) -> ResolvedRequest:
    return router(model_spec(**spec)).resolve("llama", document, headers)


class TestResolvedRequest:
    @pytest.mark.parametrize(
        ("source", "headers", "session"),
        [
            ("Session", {"session-id": "s"}, "Header:session-id"),
            ("Session", {}, ""),
            ("Header:x-s", {"x-s": "s"}, "Header:x-s"),
            ("Header:x-s", {}, ""),
            ("FirstUserMessage", {"session-id": "s"}, ""),
        ],
    )
    def test_contains_the_source_of_the_session(
        self, source: str, headers: dict[str, str], session: str
    ) -> None:
        assert resolved({"prefixSource": source}, headers).session == session

    def test_key_of_a_session_does_not_depend_on_the_salt(self) -> None:
        """The id alone separates a session from others."""
        for document in (CHAT, {**CHAT, "cache_salt": "a"}):
            found = resolved({"prefixSource": "Session"}, {"session-id": "s"}, document)
            assert found.key == ring_key("", "s")


def test_conversation_reads_session_headers() -> None:
    serving = router(model_spec(prefixSource="Session"))
    chosen = Conversation(serving, serving._rng)
    headers = {":method": b"POST", ":path": b"/v1/chat/completions", "session-id": b"s-1"}
    chosen.receive(Event(Kind.REQUEST_HEADERS, headers=headers))
    body = json.dumps({"model": "llama", **CHAT}).encode()
    chosen.receive(Event(Kind.REQUEST_BODY, body=body, end_of_stream=True))
    assert isinstance(chosen.verdict, Decision)
    assert chosen.verdict.key == ring_key("", "s-1")
