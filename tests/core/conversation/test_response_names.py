from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from extproc.core.conversation.response_names import LONGEST_HELD, ResponseNames
from tests.core.builders import thorough

NAME = 'the "alias"'


def renamed(body: bytes, *cuts: int, events: bool = False) -> bytes:
    """Return the renamed body, fed in pieces that end at these positions."""
    names = ResponseNames(NAME, events=events)
    parts = [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)]
    passed = [names.feed(part) for part in parts]
    return b"".join((*passed, names.feed(b"", end=True)))


def everywhere(body: bytes, *, events: bool = False) -> bytes:
    """Return the renamed body, after checking every single cut and single bytes."""
    whole = renamed(body, events=events)
    for cut in range(len(body) + 1):
        assert renamed(body, cut, events=events) == whole
    assert renamed(body, *range(1, len(body)), events=events) == whole
    return whole


CHAT = {
    "id": "c1",
    "object": "chat.completion",
    "model": "meta/llama",
    "choices": [
        {"message": {"role": "assistant", "model": "x", "content": 'say "model": "y" \\"model\\"'}}
    ],
    "usage": {"prompt_tokens": 3, "model": "z"},
}
MESSAGE = {"id": "m1", "content": [{"type": "text", "text": '{"model": "y"}'}], "model": "llama"}


class TestJson:
    @pytest.mark.parametrize("document", [CHAT, MESSAGE])
    @pytest.mark.parametrize("indent", [None, 2])
    def test_replaces_only_its_own_model(
        self, document: dict[str, Any], indent: int | None
    ) -> None:
        body = json.dumps(document, indent=indent).encode()
        passed = everywhere(body)
        assert json.loads(passed) == {**document, "model": NAME}
        old = b'"model": ' + json.dumps(document["model"]).encode()
        assert passed == body.replace(old, b'"model": ' + json.dumps(NAME).encode())

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"null",
            b'"model"',
            b'["model", {"model": "x"}]',
            b'{"error": {"message": "no such \\"model\\": \\"x\\"", "model": "x"}}',
            b'{"model": null, "a": "model"}',
            b'{"model": {"model": "x"}}',
            b'{"model": ["x"], "b": "x"}',
            b'{"response": {"model": "x"}, "message": {"model": "x"}}',
            b'{"a": "model", "b": {"c": [1, {"model": "x"}]}}',
            b'{"model": 5, "other": "x"}',
            b"{} {}",
            b'} "model": "x"',
            b"\xff\xfe{",
        ],
    )
    def test_without_a_model_passes_unchanged(self, body: bytes) -> None:
        assert everywhere(body) == body

    def test_passes_without_delay(self) -> None:
        names = ResponseNames(NAME, events=False)
        assert names.feed(b'{"a": "long te') == b'{"a": "long te'
        assert names.feed(b'xt", "mod') == b'xt", '
        assert names.feed(b'el" : "lla') == b'"model" : '
        assert names.feed(b'ma", "b') == json.dumps(NAME).encode() + b', "b'

    def test_with_an_endless_key_or_value_is_not_held(self) -> None:
        for begun in (b'{"', b'{"model": "'):
            names = ResponseNames(NAME, events=False)
            passed = names.feed(begun)
            for _ in range(LONGEST_HELD // 100 + 2):
                passed += names.feed(b"x" * 100)
            assert len(passed) > LONGEST_HELD
            assert passed + names.feed(b'"}', end=True) == begun + passed[len(begun) :] + b'"}'


class TestEvents:
    @pytest.mark.parametrize("line_end", ["\n", "\r\n"])
    @pytest.mark.parametrize("space", ["", " "])
    def test_replace_the_model_in_each_event(self, line_end: str, space: str) -> None:
        def stream(model: str) -> bytes:
            text = '{"model": "no"} data: {"model": "no"}\n\ndata: {}'
            events: list[dict[str, Any]] = [
                {"id": "c1", "model": model, "choices": [{"delta": {"content": text}}]},
                {"type": "response.created", "response": {"id": "r1", "model": model, "a": [{}]}},
                {"type": "message_start", "message": {"model": model, "content": []}},
                {"type": "delta", "delta": text, "item": {"model": "no"}},
                {"model": model, "choices": [{"message": {"model": "no"}}]},
            ]
            lines = [": a comment", "event: model", 'id: {"model":"no"}']
            for event in events:
                lines += [f"data:{space}{json.dumps(event)}", ""]
            return line_end.join([*lines, "data: [DONE]", "", ""]).encode()

        assert everywhere(stream("meta/llama"), events=True) == stream(NAME)

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"data",
            b"data: ",
            b"data: [DONE]\n\n",
            b'data: {"choices": [{"model": "x"}]}\n\n',
            b'data: {"a": {"response": {"model": "x"}}}\n\n',
            b'data: {"model": "cut\ndata: {"model',
            b'event: {"model": "x"}\n\n',
            b'{"model": "x"}\n',
        ],
    )
    def test_without_a_model_pass_unchanged(self, body: bytes) -> None:
        assert everywhere(body, events=True) == body

    def test_pass_at_once(self) -> None:
        names = ResponseNames("a", events=True)
        for event in (b'data: {"model":"b"}\n\n', b"data: [DONE]\n\n", b": \n"):
            assert names.feed(event) == event.replace(b'"b"', b'"a"')

    def test_can_have_any_length(self) -> None:
        names = ResponseNames("a", events=True)
        begun = b'data: {"response": {"instructions": "'
        assert names.feed(begun) == begun
        for _ in range(100):
            assert names.feed(b"x" * 10_000) == b"x" * 10_000
        assert names.feed(b'", "model": "b"}}\n\n') == b'", "model": "a"}}\n\n'


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.just("model"),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=3) | st.sampled_from(["model", "response"]), inner)
    ),
    max_leaves=8,
)


@thorough
@given(
    st.dictionaries(st.text(max_size=3) | st.sampled_from(["model", "response"]), json_values),
    st.booleans(),
    st.lists(st.integers(0, 400), max_size=5),
)
@example({"response": {"model": "x"}}, True, [])
def test_renames_any_object_like_a_parser(
    document: dict[str, Any], events: bool, cuts: list[int]
) -> None:
    text = json.dumps(document)
    body = f"data: {text}\n\n".encode() if events else text.encode()
    places = sorted(min(cut, len(body)) for cut in cuts)
    passed = renamed(body, *places, events=events)
    wanted = dict(document)
    if isinstance(wanted.get("model"), str):
        wanted["model"] = NAME
    inner = wanted.get("response")
    if events and isinstance(inner, dict) and isinstance(inner.get("model"), str):
        before = list(wanted)
        # Nothing after the object's own `model` is parsed.
        if not isinstance(document.get("model"), str) or before.index("response") < before.index(
            "model"
        ):
            wanted["response"] = {**inner, "model": NAME}
    assert json.loads(passed.removeprefix(b"data: ")) == wanted


@thorough
@given(st.binary(), st.booleans(), st.lists(st.integers(0, 100), max_size=5))
def test_returns_any_bytes_without_the_key(body: bytes, events: bool, cuts: list[int]) -> None:
    places = sorted(min(cut, len(body)) for cut in cuts)
    assert renamed(body, *places, events=events) == body
