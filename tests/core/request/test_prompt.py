from __future__ import annotations

from typing import Any

import pytest

from extproc.core.request.prompt import (
    completion_prompts,
    first_user_message,
    prompt_head,
    prompt_text,
    system_text,
    text_of,
)
from tests.core.request.prompt_parts import IMAGE, LIMIT, system, text, user


class TestTextOf:
    def test_string_is_returned_unchanged(self) -> None:
        assert text_of("hello") == "hello"

    def test_text_parts_are_joined_without_a_separator(self) -> None:
        assert text_of([text("hel"), IMAGE, text("lo")]) == "hello"

    @pytest.mark.parametrize(
        "content", [None, 7, True, {}, [], [IMAGE], ["x"], [{"text": None}], [{"text": 7}], [None]]
    )
    def test_content_without_text_is_empty(self, content: Any) -> None:
        assert text_of(content) == ""


class TestFirstUserMessage:
    @pytest.mark.parametrize(
        ("document", "expected"),
        [
            pytest.param({"messages": [user("hi"), user("again")]}, "hi", id="the first"),
            pytest.param({"messages": [system("be brief"), user("hi")]}, "hi", id="after system"),
            pytest.param({"messages": [user([text("a"), IMAGE, text("b")])]}, "ab", id="parts"),
            pytest.param({"messages": [user(None), user("later")]}, "", id="null content"),
            pytest.param({"messages": [{"role": "user"}]}, "", id="no content"),
            pytest.param({"messages": [user([IMAGE])]}, "", id="only an image"),
            pytest.param(
                {"messages": [{"role": "tool", "content": "42"}, user("hi")]}, "hi", id="tool"
            ),
            pytest.param({"messages": []}, "", id="no messages"),
            pytest.param({"messages": None}, "", id="null messages"),
            pytest.param({"messages": {"role": "user"}}, "", id="messages of a wrong type"),
            pytest.param({"messages": ["hi", None, 7]}, "", id="messages that are no objects"),
            pytest.param({}, "", id="nothing"),
            pytest.param({"prompt": "once upon"}, "once upon", id="completion"),
            pytest.param({"prompt": ["once", "twice"]}, "once", id="several prompts"),
            pytest.param({"prompt": [11, 22, 33]}, "11 22 33", id="token ids"),
            pytest.param({"prompt": [[11, 22], [33]]}, "11 22", id="lists of token ids"),
            pytest.param({"prompt": []}, "", id="no prompt"),
            pytest.param({"prompt": None}, "", id="null prompt"),
            pytest.param({"prompt": {"x": 1}}, "", id="prompt of a wrong type"),
            pytest.param({"input": "hi"}, "hi", id="Responses, a string"),
            pytest.param(
                {"instructions": "be brief", "input": [user([text("hi", "input_text")])]},
                "hi",
                id="Responses, items",
            ),
            pytest.param(
                {"system": "be brief", "messages": [user([text("hi")])]}, "hi", id="Anthropic"
            ),
        ],
    )
    def test_is_found_in_the_fields_of_every_api(
        self, document: dict[str, Any], expected: str
    ) -> None:
        assert first_user_message(document, LIMIT) == expected

    def test_limit_bounds_the_token_ids_that_are_read(self) -> None:
        assert first_user_message({"prompt": list(range(10)) * 100_000}, 3) == "0 1 2"


class TestSystemText:
    @pytest.mark.parametrize(
        ("document", "expected"),
        [
            ({"messages": [system("be brief"), user("hi")]}, "be brief"),
            ({"messages": [{"role": "developer", "content": "be brief"}]}, "be brief"),
            ({"messages": [system([text("be "), text("brief")])]}, "be brief"),
            ({"messages": [system("a"), {"role": "developer", "content": "b"}]}, "ab"),
            ({"messages": [user("hi"), system("late")]}, ""),
            ({"messages": [{"role": "assistant", "content": "x"}, system("late")]}, ""),
            ({"system": "be brief", "messages": [user("hi")]}, "be brief"),
            ({"system": [text("be "), text("brief")], "messages": []}, "be brief"),
            ({"instructions": "be brief", "input": "hi"}, "be brief"),
            ({"instructions": "be ", "input": [system("brief"), user("hi")]}, "be brief"),
            ({"instructions": None, "input": "hi"}, ""),
            ({"prompt": "x"}, ""),
            ({}, ""),
        ],
    )
    def test_contains_the_field_and_the_leading_system_messages(
        self, document: dict[str, Any], expected: str
    ) -> None:
        assert system_text(document) == expected


class TestPromptHead:
    @pytest.mark.parametrize(
        ("document", "pieces"),
        [
            (
                {"messages": [system("be brief"), user("hi")]},
                ["system", "be brief", "user", "hi"],
            ),
            (
                {"system": "be brief", "messages": [user("hi")]},
                ["be brief", "user", "hi"],
            ),
            (
                {"instructions": "be brief", "input": "hi"},
                ["be brief", "user", "hi"],
            ),
            ({"prompt": "once"}, ["once"]),
            ({"prompt": [11, 22]}, ["11", "22"]),
            ({"prompt": ["once", "twice"]}, ["once", "twice"]),
            ({"messages": [user([text("a"), text("b")])]}, ["user", "a", "b"]),
            (
                {"messages": [user([text("see"), IMAGE])]},
                ["user", "see", "data:image/png;base64,iVBORw0KGgo="],
            ),
            ({"messages": [user(None)]}, ["user"]),
            ({"model": "llama", "temperature": 1, "user": "me"}, []),
        ],
    )
    def test_contains_all_parts_of_the_prompt(
        self, document: dict[str, Any], pieces: list[str]
    ) -> None:
        assert prompt_head(document, LIMIT) == "\n".join(pieces)

    def test_contains_tools_and_tool_calls(self) -> None:
        tool = {"type": "function", "function": {"name": "add", "parameters": {"max": 9}}}
        call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
        document = {
            "tools": [tool],
            "messages": [
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "c1", "content": "3"},
            ],
        }
        assert prompt_head(document, LIMIT).split("\n") == [
            *["add", "9"],
            *["assistant", "c1", "add", "{}"],
            *["tool", "c1", "3"],
        ]

    def test_differs_by_tools_and_system_prompt(self) -> None:
        asked = [user("hi")]
        heads = {
            prompt_head(document, LIMIT)
            for document in (
                {"messages": asked},
                {"tools": [{"name": "add"}], "messages": asked},
                {"tools": [{"name": "sub"}], "messages": asked},
                {"system": "be brief", "messages": asked},
                {"system": "be long", "messages": asked},
            )
        }
        assert len(heads) == 5

    @pytest.mark.parametrize("limit", [1, 4, 5, 6, 100])
    def test_is_not_longer_than_the_limit(self, limit: int) -> None:
        document = {"messages": [user("世界" * 100)]}
        assert prompt_head(document, limit) == ("user\n" + "世界" * 100)[:limit]


TURN = [user("hi")]


@pytest.mark.parametrize(
    ("nulls", "document"),
    [
        ({"prompt": None}, {"messages": TURN}),
        ({"prompt": None, "messages": None}, {"input": TURN}),
        ({"prompt": None, "messages": None}, {"input": "hi"}),
        ({"messages": None, "input": None}, {"prompt": "hi"}),
        ({"messages": None, "input": None}, {"prompt": ["hi", "you"]}),
        ({"messages": None}, {"input": [system("be brief"), *TURN]}),
    ],
)
def test_null_is_read_like_a_missing_field(nulls: dict[str, Any], document: dict[str, Any]) -> None:
    for with_nulls in ({**nulls, **document}, {**document, **nulls}):
        assert first_user_message(with_nulls, LIMIT) == "hi"
        assert system_text(with_nulls) == system_text(document)
        assert prompt_head(with_nulls, LIMIT) == prompt_head(document, LIMIT)
        assert prompt_text(with_nulls, LIMIT) == prompt_text(document, LIMIT)
        assert completion_prompts(with_nulls) == completion_prompts(document)


class TestInputAsString:
    """It is a user message in the Responses API."""

    def test_is_the_prompt_of_the_same_text_as_a_message(self) -> None:
        one, other = ({"instructions": "be brief", "input": asked} for asked in ("hi", TURN))
        assert prompt_text(one, LIMIT) == prompt_text(other, LIMIT)
        assert prompt_head(one, LIMIT) == prompt_head(other, LIMIT)
        assert first_user_message(one, LIMIT) == first_user_message(other, LIMIT)

    def test_begins_the_prompt_of_the_next_turn(self) -> None:
        first = prompt_text({"input": "hi"}, LIMIT)
        answer = {"role": "assistant", "content": "hello"}
        second = prompt_text({"input": [*TURN, answer, user("and?")]}, LIMIT)
        assert second.text.startswith(first.text)
        assert second.previous_chars == len(first.text)


class TestCompletionPrompts:
    @pytest.mark.parametrize(
        ("document", "prompts"),
        [
            ({"prompt": ["a", "b"]}, ["a", "b"]),
            ({"prompt": [[1], [2, 3]]}, [[1], [2, 3]]),
            ({"prompt": ["a"]}, []),
            ({"prompt": [[1, 2]]}, []),
            ({"prompt": [1, 2]}, []),
            ({"prompt": "a"}, []),
            ({"prompt": []}, []),
            ({"prompt": None}, []),
            ({"prompt": ["a", "b"], "messages": []}, []),
            ({"input": ["a", "b"]}, []),
        ],
    )
    def test_are_returned_only_for_completions_with_several(
        self, document: dict[str, Any], prompts: list[Any]
    ) -> None:
        assert completion_prompts(document) == prompts


def test_role_of_a_wrong_type_is_not_system() -> None:
    for role in (["system"], {"system": 1}, 7, None):
        assert system_text({"messages": [{"role": role, "content": "hi"}]}) == ""
