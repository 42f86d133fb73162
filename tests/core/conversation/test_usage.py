from __future__ import annotations

import gzip
import json
import zlib
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from extproc.core.conversation.usage import HEAD, MOST_TOKENS, TAIL, Usage, UsageReader
from tests.core.bodies import documents, written
from tests.core.builders import thorough

DONE = b"data: [DONE]\n\n"


def read(*parts: bytes) -> Usage | None:
    reader = UsageReader()
    for part in parts:
        reader.feed(part)
    return reader.usage()


def compact(document: object) -> bytes:
    """Return JSON in vLLM's format."""
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def chat(usage: object, content: str = "hello", **more: Any) -> bytes:
    """Return a complete chat completion."""
    message = {"role": "assistant", "content": content, "tool_calls": []}
    return compact(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "model": "llama",
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": usage,
            "prompt_logprobs": None,
            "kv_transfer_params": None,
            **more,
        }
    )


def chunk(content: str = "", **more: Any) -> bytes:
    """Return one event of a chat completion stream."""
    choices = [{"index": 0, "delta": {"content": content}}] if content else []
    document = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": choices, **more}
    return b"data: " + compact(document) + b"\n\n"


def event(kind: str, **fields: Any) -> bytes:
    """Return one event of a stream of Responses or Messages."""
    return f"event: {kind}\n".encode() + b"data: " + compact({"type": kind, **fields}) + b"\n\n"


def openai(prompt: int = 402, cached: int | None = 384) -> dict[str, Any]:
    details = None if cached is None else {"cached_tokens": cached, "audio_tokens": None}
    return {"prompt_tokens": prompt, "total_tokens": prompt + 7, "prompt_tokens_details": details}


def responses(prompt: int = 402, cached: int = 384) -> dict[str, Any]:
    details = {"cached_tokens": cached, "input_tokens_per_turn": []}
    return {"input_tokens": prompt, "input_tokens_details": details, "output_tokens": 7}


class TestChatCompletion:
    def test_has_prompt_and_cached_tokens(self) -> None:
        assert read(chat(openai())) == Usage(402, 384)

    def test_can_have_zero_cached_tokens(self) -> None:
        assert read(chat(openai(cached=0))) == Usage(402, 0)

    @pytest.mark.parametrize("details", [None, {}, {"cached_tokens": None}, [], "384"])
    def test_can_lack_cached_tokens(self, details: object) -> None:
        said = {"prompt_tokens": 402, "prompt_tokens_details": details}
        assert read(chat(said)) == Usage(402, None)
        assert read(chat({"prompt_tokens": 402})) == Usage(402, None)

    def test_can_have_any_length(self) -> None:
        assert read(chat(openai(), content='ab\n"\\é世' * 20_000)) == Usage(402, 384)

    def test_can_have_whitespace(self) -> None:
        document = json.loads(chat(openai(), content="x" * 3000))
        for body in (json.dumps(document, indent=2), "\n " + json.dumps(document) + "\n"):
            assert read(body.encode()) == Usage(402, 384)

    @pytest.mark.parametrize("usage", [None, {}, [], "usage", 7, {"completion_tokens": 7}])
    def test_without_usage_has_no_counts(self, usage: object) -> None:
        assert read(chat(usage)) is None

    def test_can_have_fields_after_usage(self) -> None:
        assert read(chat(openai(), user="usage", metrics={"usage": 1})) == Usage(402, 384)
        assert read(chat(openai(), names=["usage"] * 100)) is None, "nobody looks so far"

    def test_cut_short_has_no_counts(self) -> None:
        body = chat(openai())
        assert [read(body[:end]) for end in range(len(body))] == [None] * len(body)

    def test_error_has_no_counts(self) -> None:
        assert read(compact({"error": {"message": "usage", "code": 400}})) is None

    def test_with_too_many_bytes_after_usage_has_no_counts(self) -> None:
        assert read(chat(openai(), prompt_token_ids=list(range(1000)))) is None


class TestChatCompletionStream:
    def test_has_counts_in_its_last_chunk(self) -> None:
        chunks = [chunk("a", usage=None) for _ in range(100)]
        assert read(*chunks, chunk(usage=openai()), DONE) == Usage(402, 384)

    def test_uses_the_last_of_several_counts(self) -> None:
        chunks = [chunk("a", usage=openai(cached=None)) for _ in range(100)]
        assert read(*chunks) == Usage(402, None)
        assert read(*chunks, chunk(usage=openai()), DONE) == Usage(402, 384)

    def test_without_usage_has_no_counts(self) -> None:
        assert read(*(chunk("a") for _ in range(100)), DONE) is None

    def test_can_have_comments_and_any_line_ends(self) -> None:
        stream = b": here I am\n\n" + chunk("a") + chunk(usage=openai()) + DONE
        for end in (b"\n", b"\r\n", b"\r"):
            assert read(stream.replace(b"\n", end)) == Usage(402, 384)

    def test_can_end_with_an_error(self) -> None:
        assert read(chunk("a"), b'data: {"error": {"message": "dead"}}\n\n', DONE) is None


class TestResponses:
    def test_have_counts_with_other_names(self) -> None:
        body = compact({"output": [{"content": "x" * 5000}], "usage": responses(), "user": None})
        assert read(body) == Usage(402, 384)

    def test_streamed_have_counts_in_the_last_event(self) -> None:
        for length in (10, 50_000):
            response = {"output": ["x" * length], "usage": responses(), "user": None}
            stream = [
                event("response.created", response={"usage": None}),
                *(event("response.output_text.delta", delta="x") for _ in range(50)),
                event("response.completed", response=response, sequence_number=52),
            ]
            assert read(*stream) == Usage(402, 384)


class TestAnthropicMessages:
    def counted(self, **counts: int | None) -> bytes:
        content = [{"type": "text", "text": "hello"}]
        return compact({"type": "message", "content": content, "usage": counts})

    def test_count_cached_tokens_separately(self) -> None:
        body = self.counted(input_tokens=18, cache_read_input_tokens=384, output_tokens=7)
        assert read(body) == Usage(402, 384)

    def test_count_newly_cached_tokens_as_uncached(self) -> None:
        body = self.counted(
            input_tokens=2, cache_creation_input_tokens=16, cache_read_input_tokens=384
        )
        assert read(body) == Usage(402, 384)

    def test_can_be_cached_completely(self) -> None:
        assert read(self.counted(input_tokens=0, cache_read_input_tokens=402)) == Usage(402, 402)

    @pytest.mark.parametrize("counts", [{}, {"cache_read_input_tokens": None}])
    def test_can_lack_cached_tokens(self, counts: dict[str, None]) -> None:
        assert read(self.counted(input_tokens=402, **counts)) == Usage(402, None)

    def stream(self, first: dict[str, int], last: dict[str, int]) -> list[bytes]:
        return [
            event("message_start", message={"id": "msg_1", "content": [], "usage": first}),
            *(event("content_block_delta", delta={"text": "word"}) for _ in range(500)),
            event("message_delta", delta={"stop_reason": "end_turn"}, usage=last),
            event("message_stop"),
        ]

    def test_streamed_have_counts_in_the_first_event(self) -> None:
        first = {"input_tokens": 18, "cache_read_input_tokens": 384, "output_tokens": 1}
        assert read(*self.stream(first, {"output_tokens": 500})) == Usage(402, 384)

    def test_prefer_the_counts_of_the_last_event(self) -> None:
        last = {"input_tokens": 18, "cache_read_input_tokens": 384, "output_tokens": 500}
        stream = self.stream({"input_tokens": 402, "output_tokens": 0}, last)
        assert read(*stream) == Usage(402, 384)
        assert read(*stream[:400]) == Usage(402, None), "the client went away"

    def test_ignore_usage_in_tool_arguments(self) -> None:
        forged: dict[str, Any] = {"usage": {"input_tokens": 9}}
        for tried in (forged, {"a": forged}, {"a": [forged]}, {'x"usage': forged["usage"]}):
            tool = {"type": "tool_use", "input": tried}
            assert read(compact({"content": [tool]})) is None
            assert read(compact({"content": [tool], "usage": None})) is None
            assert read(event("content_block_start", content_block=tool)) is None


class TestModelOutput:
    forged = '"usage": {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 9}}'

    @pytest.mark.parametrize(
        "text",
        [
            *(forged, "{" + forged + "}", f'"}}]}}, {forged}}}', forged.replace('"', '\\"')),
            *("\n\ndata: {" + forged + "}\n\n", "\\", '\\"usage', '"usage"', "usage"),
        ],
    )
    def test_with_usage_is_ignored(self, text: str) -> None:
        for content in (text, text + "x" * TAIL, "x" * TAIL + text):
            assert read(chat(None, content)) is None
            assert read(chat(openai(), content)) == Usage(402, 384)
            assert read(chunk(content), DONE) is None
            assert read(chunk(content), chunk(usage=openai()), DONE) == Usage(402, 384)
            item = event("response.output_text.done", text=content)
            assert read(item) is None

    @thorough
    @given(st.lists(st.sampled_from([*'"\\{}[]:, \n', "usage", forged])).map("".join))
    def test_of_any_text_is_ignored(self, text: str) -> None:
        assert read(chat(None, text)) is None
        assert read(chunk(text)) is None
        assert read(chat(openai(), text)) == Usage(402, 384)


class TestNumbers:
    @pytest.mark.parametrize(
        "tokens", [0, -1, 1.5, 402.0, "402", True, None, [], MOST_TOKENS + 1, 10**40]
    )
    def test_implausible_prompt_tokens_are_ignored(self, tokens: object) -> None:
        assert read(chat({"prompt_tokens": tokens})) is None
        assert read(chat({"input_tokens": tokens})) is None
        assert read(chat({"input_tokens": tokens, "input_tokens_details": {}})) is None

    @pytest.mark.parametrize("cached", [403, -1, 1.5, "384", True])
    def test_implausible_cached_tokens_are_unknown(self, cached: object) -> None:
        said = {"prompt_tokens": 402, "prompt_tokens_details": {"cached_tokens": cached}}
        assert read(chat(said)) == Usage(402, None)

    def test_of_any_length_are_ignored(self) -> None:
        assert read(b'{"usage":{"prompt_tokens":' + b"9" * 1900 + b"}}") is None


class TestOtherBodies:
    @pytest.mark.parametrize("pack", [gzip.compress, zlib.compress])
    def test_compressed_have_no_counts(self, pack: Any) -> None:
        assert read(pack(chat(openai()))) is None
        assert read(pack(chunk("a") + chunk(usage=openai()))) is None

    @pytest.mark.parametrize(
        "body", [b"", b"\n", b"hello", b'"usage"', b'[{"usage":{"prompt_tokens":9}}]', b"\xff{"]
    )
    def test_unknown_documents_have_no_counts(self, body: bytes) -> None:
        assert read(body) is None

    def test_text_has_no_counts(self) -> None:
        assert read(b'He said:\n{"usage": {"prompt_tokens": 9}}\n') is None

    @pytest.mark.parametrize("start", [b"", b"{", b"data: {"])
    def test_can_nest_deeply(self, start: bytes) -> None:
        assert read(start + b'"usage":{' * 5000) is None
        assert read(start + b'"usage",' * 5000) is None


def cut(body: bytes, places: list[int]) -> list[bytes]:
    ends = sorted({min(place, len(body)) for place in places} | {0, len(body)})
    return [body[start:end] for start, end in pairwise(ends)]


usages = st.builds(openai, st.integers(1, 10**6), st.none() | st.integers(0, 10**6)) | st.builds(
    responses, st.integers(1, 10**6), st.integers(0, 10**6)
)
answers = st.one_of(
    st.builds(chat, usages, st.text() | st.just("é" * 5000)),
    st.builds(
        lambda said, words, last: b"".join([*(chunk(w, usage=said) for w in words), last, DONE]),
        st.none() | usages,
        st.lists(st.text(min_size=1) | st.just("é" * 700), max_size=8),
        st.builds(lambda said: chunk(usage=said), usages) | st.just(b""),
    ),
)
cuts = st.lists(st.integers(0, 300) | st.integers(0, 12_000), max_size=20)


@thorough
@given(answers, cuts)
def test_counts_do_not_depend_on_how_the_body_is_cut(body: bytes, places: list[int]) -> None:
    assert read(*cut(body, places)) == read(body)
    every_byte = [body[place : place + 1] for place in range(len(body))]
    assert read(*every_byte) == read(body)


@thorough
@given(usages, st.text(max_size=200))
def test_counts_are_read_exactly(said: dict[str, Any], content: str) -> None:
    usage = read(chat(said, content))
    assert usage is not None
    assert usage.prompt_tokens == said.get("prompt_tokens", said.get("input_tokens"))


PARTS = [
    *(b'"usage"', b'"usage":', b"{", b"}", b'"', b"\\", b":", b",", b"\n", b"data: ", b"event: "),
    *(b'{"prompt_tokens":9}', b'"input_tokens":9', b"null", b"[", b"]", b"\xff", b"\xf0\x9f", b"9"),
    *(b'"":', b'{"":', b'"prompt_tokens_details":', b'{"cached_tokens":1}', b" ", b"x" * 1000),
]


@thorough
@given(st.lists(st.binary(max_size=50) | st.sampled_from(PARTS), max_size=60))
@example([b"{", b'"usage":' * 200, b"}"])
def test_garbage_gives_plausible_counts_or_none(parts: list[bytes]) -> None:
    usage = read(*parts)
    if usage is not None:
        assert 0 < usage.prompt_tokens <= MOST_TOKENS
        assert usage.cached_tokens is None or 0 <= usage.cached_tokens <= usage.prompt_tokens
    assert read(b"".join(parts)) == usage


@thorough
@given(documents, st.booleans())
def test_only_a_documents_own_usage_counts(document: Any, ascii_only: bool) -> None:
    document.pop("usage", None)
    assert read(written(document, compact=True, ascii_only=ascii_only)) is None
    said = {**document, "usage": openai()}
    assert read(written(said, compact=False, ascii_only=ascii_only)) == Usage(402, 384)


@pytest.mark.parametrize("size", [1, 100, 100_000])
def test_reader_keeps_little_of_a_long_body(size: int) -> None:
    reader = UsageReader()
    for _ in range(20_000_000 // size if size > 1 else 100_000):
        reader.feed(b"x" * size)
        assert len(reader._tail) <= 2 * TAIL
    assert len(reader._head) <= HEAD


class TestFirstToken:
    def speaks(self, *parts: bytes) -> list[bool]:
        reader = UsageReader()
        said = []
        for part in parts:
            reader.feed(part)
            said.append(reader.has_first_token(part))
        return said

    @pytest.mark.parametrize(
        "part",
        [
            *(chat(openai()), chunk("a"), event("message_start", message={}), b'{"error": {}}'),
            *(b"\x1f\x8b", b"event: error\n"),
        ],
    )
    def test_is_in_the_first_bytes(self, part: bytes) -> None:
        assert self.speaks(part) == [True]

    def test_is_not_in_the_opening_events_of_responses(self) -> None:
        tools = [{"name": "event: response.output"}, "x" * 20_000]
        created = event("response.created", response={"tools": tools})
        waiting = event("response.in_progress", response={"tools": tools})
        first = event("response.output_item.added", item={})
        assert self.speaks(created, waiting, first) == [False, False, True]
        assert self.speaks(created + waiting, first) == [False, True]
        assert self.speaks(created[:9], created[9:16_000], created[16_000:], waiting + first) == [
            *(False, False, False, True)
        ]
