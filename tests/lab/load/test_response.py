"""Tokens, usage and errors in the formats of vLLM and other servers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.lab.load.response import Response, Usage
from extproc.lab.workloads.workload import Api

USAGE = {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11}


def chat(finish: str | None = None, **delta: Any) -> bytes:
    return _event([{"index": 0, "delta": delta, "finish_reason": finish}])


def completion(text: str, finish: str | None = None) -> bytes:
    return _event([{"index": 0, "text": text, "finish_reason": finish}])


def usage(**more: Any) -> bytes:
    return _event([], usage=USAGE | more)


def _event(choices: list[Any], **more: Any) -> bytes:
    # Compact, as pydantic formats it.
    return json.dumps({"id": "x", "choices": choices, **more}, separators=(",", ":")).encode()


def answered(*events: bytes, api: Api = "chat", keep: bool = False) -> Response:
    """Return the response of events that arrive one second apart."""
    answer = Response(api, keep)
    for second, event in enumerate(events):
        answer.event(event, float(second))
    return answer


def test_chat_times_start_at_the_first_token() -> None:
    answer = answered(
        chat(role="assistant", content=""),
        chat(content="one "),
        chat(content="two", finish="length"),
        usage(prompt_tokens_details={"cached_tokens": 8}),
        b"[DONE]",
    )
    assert (answer.first, answer.last, list(answer.gaps), answer.tokens) == (1, 2, [1], 2)
    assert answer.usage == Usage(9, 2, 8)
    assert answer.verdict() is None


def test_completion_times_start_at_the_first_event() -> None:
    answer = answered(completion("a"), completion(""), completion("b", "length"), b"[DONE]",
                      api="completions")  # fmt: skip
    assert (answer.first, answer.last, answer.tokens) == (0, 2, 3)


@pytest.mark.parametrize(
    ("event", "is_token"),
    [
        (chat(content="x"), True),
        (chat(content='"'), True),
        (chat(content="ü"), True),
        (chat(role="assistant", content="x"), True),
        (chat(role="assistant", content=""), False),
        (chat(role="assistant", content=None), False),
        (chat(role="assistant"), False),
        # A token may have no text: a part of a character, or a special token.
        (chat(content=""), True),
        (chat(content="", finish="length"), True),
        (chat(finish="stop"), False),
        (chat(content=None, finish="stop"), False),
        (chat(reasoning_content="hm"), True),
        (chat(reasoning="hm", content=None), True),
        (chat(tool_calls=[{"index": 0}]), True),
        (usage(), False),
        (b'{"choices": [{"delta": {"content": "spaced"}}]}', True),
        (b'{"choices": [{"delta": {"content": ""}}]}', True),
        (b'{"choices": [{"delta": "?"}]}', False),
        (b'{"choices": "?"}', False),
        (b"[]", False),
        (b"no JSON", False),
        (b"", False),
    ],
)
def test_events_of_a_chat_that_count_as_tokens(event: bytes, is_token: bool) -> None:
    assert answered(event).tokens == is_token


@given(st.text(min_size=1))
def test_any_text_counts_as_a_token(text: str) -> None:
    answer = answered(chat(content=text), b"[DONE]", keep=True)
    assert (answer.tokens, answer.text(), answer.verdict()) == (1, text, None)


def test_text_joins_all_tokens() -> None:
    events = [chat(role="assistant", content=""), chat(content="a "), chat(content="b")]
    assert answered(*events, keep=True).text() == "a b"
    assert answered(*events, keep=False).text() == ""
    spoken = answered(completion("a "), completion("b"), api="completions", keep=True)
    assert spoken.text() == "a b"


def test_text_of_an_unknown_shape_is_empty() -> None:
    strange = b'{"choices": [{"delta": "?", "other": {"content": "x"}}]}'
    assert answered(strange, keep=True).text() == ""


def test_usage_with_the_last_token_is_found() -> None:
    last = json.dumps(
        {"choices": [{"delta": {"content": "x"}, "finish_reason": "stop"}], "usage": USAGE}
    )
    answer = answered(chat(content="y"), last.encode())
    assert answer.verdict() is None, "its finish_reason ends it, [DONE] or not"
    assert answer.usage == Usage(9, 2)


@pytest.mark.parametrize("found", [{"prompt_tokens": -1}, {"prompt_tokens": "9"}, {}])
def test_invalid_usage_is_ignored(found: dict[str, object]) -> None:
    answer = answered(_event([], usage=found))
    assert answer.usage == Usage(0, 0)
    assert answered(_event([], usage="much")).usage is None
    assert answered(_event([], usage=None)).usage is None


@pytest.mark.parametrize(
    ("events", "kind", "message"),
    [
        ([chat(content="x")], "cut off", "[DONE]"),
        ([], "cut off", "[DONE]"),
        ([b"[DONE]"], "no token", ""),
        ([b'{"error":{"message":"engine died"}}', b"[DONE]"], "an error in the stream", "died"),
        ([b'{"object":"error","message":"old"}', b"[DONE]"], "an error in the stream", "old"),
        ([b'{"error":"just text"}'], "an error in the stream", "just text"),
    ],
)
def test_incomplete_response_is_a_failure(events: list[bytes], kind: str, message: str) -> None:
    failure = answered(*events).verdict()
    assert failure is not None
    assert failure.kind == kind
    assert message in failure.message


def test_response_without_streaming_has_one_time() -> None:
    answer = Response("chat", keep=True)
    message = {"role": "assistant", "content": "all of it"}
    answer.whole(json.dumps({"choices": [{"message": message}], "usage": USAGE}).encode(), 5.0)
    assert (answer.verdict(), answer.first, answer.last) == (None, 5.0, 5.0)
    assert (answer.usage, answer.text()) == (Usage(9, 2), "all of it")
