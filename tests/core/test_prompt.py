from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.prompt import first_user_message, prompt_head, spoken, system_text, text_of
from tests.core import bodies
from tests.core.builders import brief

LIMIT = 1000


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def system(content: Any) -> dict[str, Any]:
    return {"role": "system", "content": content}


def text(value: str, kind: str = "text") -> dict[str, Any]:
    return {"type": kind, "text": value}


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}


class TestTheTextOfAContent:
    def test_a_string_is_its_text(self) -> None:
        assert text_of("hello") == "hello"

    def test_text_parts_are_joined_with_nothing_between(self) -> None:
        assert text_of([text("hel"), IMAGE, text("lo")]) == "hello"

    @pytest.mark.parametrize(
        "content", [None, 7, True, {}, [], [IMAGE], ["x"], [{"text": None}], [{"text": 7}], [None]]
    )
    def test_what_has_no_text_counts_nothing(self, content: Any) -> None:
        assert text_of(content) == ""


class TestTheFirstUserMessage:
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
    def test_is_found_in_every_apis_fields(self, document: dict[str, Any], expected: str) -> None:
        assert first_user_message(document, LIMIT) == expected

    def test_of_token_ids_reads_no_more_of_them_than_the_limit_needs(self) -> None:
        assert first_user_message({"prompt": list(range(10)) * 100_000}, 3) == "0 1 2"


class TestTheSystemText:
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
    def test_is_the_field_and_the_messages_before_the_first_of_the_user(
        self, document: dict[str, Any], expected: str
    ) -> None:
        assert system_text(document) == expected


class TestThePromptsHead:
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
                ["be brief", "hi"],
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
    def test_is_everything_that_the_prompt_is_made_of(
        self, document: dict[str, Any], pieces: list[str]
    ) -> None:
        assert prompt_head(document, LIMIT) == "\n".join(pieces)

    def test_holds_tools_and_tool_calls(self) -> None:
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

    def test_differs_where_the_tools_or_the_system_prompt_differ(self) -> None:
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
    def test_has_no_more_characters_than_the_limit(self, limit: int) -> None:
        document = {"messages": [user("世界" * 100)]}
        assert prompt_head(document, limit) == ("user\n" + "世界" * 100)[:limit]


def test_a_prompt_that_is_null_leaves_the_messages_to_speak() -> None:
    document = {"prompt": None, "messages": [{"role": "user", "content": "hi"}]}
    assert first_user_message(document, 100) == "hi"


def leaves(said: str) -> list[str]:
    """The texts that it was made of, if none has several lines."""
    return said.split("\n")[1:]


TOOL = {"type": "function", "function": {"name": "add", "parameters": {"max": 9, "strict": True}}}


class TestWhatIsSpoken:
    @pytest.mark.parametrize(
        ("document", "opening", "rest"),
        [
            pytest.param(
                {"messages": [system("be brief"), user("hi")]},
                ["system", "be brief"],
                ["user", "hi"],
                id="chat",
            ),
            pytest.param(
                {"messages": [user("hi")], "tools": [TOOL]},
                ["add", "9"],
                ["user", "hi"],
                id="tools come first, whatever their place in the body",
            ),
            pytest.param(
                {"messages": [system("be brief"), user("hi")], "tools": [TOOL]},
                ["add", "9", "system", "be brief"],
                ["user", "hi"],
                id="tools and the system prompt",
            ),
            pytest.param(
                {"messages": [system("a"), {"role": "developer", "content": "b"}, user("hi")]},
                ["system", "a", "developer", "b"],
                ["user", "hi"],
                id="several system messages",
            ),
            pytest.param(
                {"messages": [user("hi"), system("late")]},
                [],
                ["user", "hi", "system", "late"],
                id="a late system message",
            ),
            pytest.param(
                {"messages": [user([text("see "), IMAGE, text("this")])], "system": [text("s")]},
                ["s"],
                ["user", "see ", "data:image/png;base64,iVBORw0KGgo=", "this"],
                id="Anthropic, parts",
            ),
            pytest.param(
                {"input": [user([text("hi", "input_text")])], "instructions": "be brief"},
                ["be brief"],
                ["user", "hi"],
                id="Responses",
            ),
            pytest.param({"input": "hi"}, [], ["hi"], id="Responses, a string"),
            pytest.param({"prompt": "once"}, [], ["once"], id="completion"),
            pytest.param({"prompt": ["once", "twice"]}, [], ["once", "twice"], id="prompts"),
            pytest.param({"prompt": [[11, 22], [33]]}, [], ["11", "22", "33"], id="token ids"),
            pytest.param({"messages": [user(None)]}, [], ["user"], id="null content"),
            pytest.param({"messages": {"x": "hi"}}, [], ["hi"], id="messages of a wrong type"),
            pytest.param(
                {"messages": [{"role": ["system"], "content": "hi"}]},
                [],
                ["system", "hi"],
                id="a role of a wrong type",
            ),
            pytest.param({"model": "llama", "user": "me"}, [], [], id="nothing"),
        ],
    )
    def test_is_tools_and_system_prompt_and_then_all_else(
        self, document: dict[str, Any], opening: list[str], rest: list[str]
    ) -> None:
        said = spoken(document, LIMIT)
        assert leaves(said.text) == opening + rest
        assert leaves(said.text[: said.system]) == opening
        assert said.beyond == 0

    @brief
    @given(bodies.documents, st.integers(0, 60))
    def test_is_cut_at_a_text_behind_the_limit_and_only_counted_from_there(
        self, document: dict[str, Any], limit: int
    ) -> None:
        whole, part = spoken(document, 10**9), spoken(document, limit)
        assert whole.text.startswith(part.text)
        assert len(part.text) >= min(limit, len(whole.text))
        assert len(part.text) + part.beyond == len(whole.text)
        assert part.system == min(whole.system, len(part.text))

    def test_may_begin_with_a_text_that_is_longer_than_the_limit(self) -> None:
        said = spoken({"prompt": ["x" * 5000, "y" * 700]}, LIMIT)
        assert (len(said.text), said.beyond) == (5001, 701)


class TestAnImageThatIsSpoken:
    def picture(self, data: str) -> str:
        image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
        return spoken({"messages": [user([image, text("what is it?")])]}, LIMIT).text

    def test_is_told_apart_by_all_of_its_data(self) -> None:
        long = "QUJD" * 10_000
        assert self.picture(long) == self.picture(long)
        assert len({self.picture(long), self.picture(long + "A"), self.picture("A" + long)}) == 3

    def test_is_not_as_long_as_its_data(self) -> None:
        assert len(self.picture("QUJD" * 10_000)) < 100

    def test_is_only_what_says_so(self) -> None:
        for long in ("database: " * 500, "see data:image/png;base64," + "QUJD" * 1000):
            assert leaves(spoken({"prompt": long}, LIMIT).text) == [long]


def test_a_role_of_a_wrong_type_is_not_the_systems() -> None:
    for role in (["system"], {"system": 1}, 7, None):
        assert system_text({"messages": [{"role": role, "content": "hi"}]}) == ""
