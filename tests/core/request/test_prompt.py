from __future__ import annotations

from typing import Any

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.request.prompt import (
    completion_prompts,
    first_user_message,
    prompt_head,
    prompt_text,
    system_text,
    text_of,
)
from extproc.core.request.prompt_leaves import MEDIUM_BYTES
from tests.core import bodies
from tests.core.builders import brief

LIMIT = 1000


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def system(content: Any) -> dict[str, Any]:
    return {"role": "system", "content": content}


def text(value: str, kind: str = "text") -> dict[str, Any]:
    return {"type": kind, "text": value}


IMAGE: dict[str, Any] = {
    "type": "image_url",
    "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="},
}


def digest(content: str) -> str:
    """Return the leaf of a medium in a prompt's text."""
    return str(xxhash.xxh3_64_hexdigest(content.encode())) * 256


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


def test_messages_count_if_the_prompt_is_null() -> None:
    document = {"prompt": None, "messages": [{"role": "user", "content": "hi"}]}
    assert first_user_message(document, 100) == "hi"


def leaves(joined: str) -> list[str]:
    """Return the leaves of a text, none of which has several lines."""
    return joined.split("\n")[1:]


TOOL = {"type": "function", "function": {"name": "add", "parameters": {"max": 9, "strict": True}}}


class TestPromptText:
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
                ["user", "see ", digest(IMAGE["image_url"]["url"]), "this"],
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
    def test_starts_with_tools_and_system_prompt(
        self, document: dict[str, Any], opening: list[str], rest: list[str]
    ) -> None:
        found = prompt_text(document, 10 * LIMIT)
        assert leaves(found.text) == opening + rest
        assert leaves(found.text[: found.system_chars]) == opening
        assert found.omitted_chars == 0

    @brief
    @given(bodies.documents, st.integers(0, 60))
    def test_ends_after_the_limit_and_counts_the_rest(
        self, document: dict[str, Any], limit: int
    ) -> None:
        whole, part = prompt_text(document, 10**9), prompt_text(document, limit)
        assert whole.text.startswith(part.text)
        assert len(part.text) >= min(limit, len(whole.text))
        assert len(part.text) + part.omitted_chars == len(whole.text)
        assert part.system_chars == min(whole.system_chars, len(part.text))

    def test_first_string_can_be_longer_than_the_limit(self) -> None:
        found = prompt_text({"prompt": ["x" * 5000, "y" * 700]}, LIMIT)
        assert (len(found.text), found.omitted_chars) == (5001, 701)


LONG = "QUJD" * 10_000
BASE64 = {"type": "base64", "media_type": "image/png", "data": LONG}
MEDIA = [
    pytest.param(
        lambda data: {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}},
        id="an image in chat completions",
    ),
    pytest.param(
        lambda data: {"type": "image_url", "image_url": {"url": f"http://x/{data}", "detail": "a"}},
        id="an image by its URL",
    ),
    pytest.param(
        lambda data: {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}},
        id="a recording",
    ),
    pytest.param(
        lambda data: {"type": "video_url", "video_url": {"url": f"data:video/mp4;base64,{data}"}},
        id="a video",
    ),
    pytest.param(
        lambda data: {"type": "file", "file": {"file_data": data, "filename": "a.pdf"}}, id="a file"
    ),
    pytest.param(lambda data: {"type": "input_image", "image_url": data}, id="Responses, an image"),
    pytest.param(lambda data: {"type": "input_file", "file_data": data}, id="Responses, a file"),
    pytest.param(
        lambda data: {"type": "image", "source": {**BASE64, "data": data}}, id="Anthropic, an image"
    ),
    pytest.param(
        lambda data: {"type": "image", "source": {"type": "url", "url": data}},
        id="Anthropic, an image by its URL",
    ),
    pytest.param(
        lambda data: {
            "type": "tool_result",
            "content": [{"type": "image", "source": {**BASE64, "data": data}}],
        },
        id="Anthropic, an image that a tool gave",
    ),
]


@pytest.mark.parametrize("medium", MEDIA)
class TestMedium:
    def text_with(self, medium: Any, data: str) -> str:
        return prompt_text({"messages": [user([medium(data), text("what is it?")])]}, LIMIT).text

    def test_any_difference_in_its_data_changes_the_text(self, medium: Any) -> None:
        datas = (LONG, LONG + "A", "A" + LONG, LONG[:5000] + "B" + LONG[5001:])
        assert self.text_with(medium, LONG) == self.text_with(medium, LONG)
        assert len({self.text_with(medium, data) for data in datas}) == 4

    @pytest.mark.parametrize("data", ["QUJD", LONG])
    def test_has_a_fixed_length(self, medium: Any, data: str) -> None:
        length = len(self.text_with(medium, data))
        assert MEDIUM_BYTES < length < MEDIUM_BYTES + 100

    def test_is_left_out_if_it_may_be_cut(self, medium: Any) -> None:
        document = {"messages": [user([text("see"), medium(LONG)])]}
        assert leaves(prompt_text(document, LIMIT, cut=True).text) == ["user", "see"]
        assert prompt_head(document, LIMIT, cut=True) == "user\nsee"
        more = {"messages": [user([text("see"), medium(LONG), text("it")])]}
        assert leaves(prompt_text(more, 10**5, cut=True).text) == leaves(
            prompt_text(more, 10**5).text
        )

    def test_is_a_short_hash_in_the_prompt_head(self, medium: Any) -> None:
        heads = {
            prompt_head({"messages": [user([medium(data)])]}, 60) for data in (LONG, LONG + "A")
        }
        assert len(heads) == 2


class TestTextSimilarToMedium:
    @pytest.mark.parametrize(
        "part",
        [
            {"type": "document", "source": {"type": "text", "data": "so long"}},
            {"type": "document", "source": {"type": "content", "content": [text("so long")]}},
            {"type": "image", "source": {"type": "file", "file_id": "so long"}},
            {"type": "tool_use", "input": {"source": {"text": "so long"}}},
            {"type": "image_url", "image_url": None, "uuid": "so long"},
        ],
    )
    def test_is_kept_unchanged(self, part: dict[str, Any]) -> None:
        assert leaves(prompt_text({"messages": [user([part])]}, LIMIT).text) == ["user", "so long"]

    def test_text_that_contains_data_is_kept_unchanged(self) -> None:
        for long in ("database: " * 500, "see data:image/png;base64," + "QUJD" * 1000):
            assert leaves(prompt_text({"prompt": long}, LIMIT).text) == [long]


class TestCacheControl:
    """Clients move `cache_control` from turn to turn. Engines do not put it in the prompt."""

    def test_is_not_part_of_the_prompt(self) -> None:
        marked = {**text("hi"), "cache_control": {"type": "ephemeral", "ttl": "1h"}}
        one, other = ({"messages": [user([part])]} for part in (text("hi"), marked))
        assert prompt_text(one, LIMIT) == prompt_text(other, LIMIT)
        assert prompt_head(one, LIMIT) == prompt_head(other, LIMIT)


def billing(number: int) -> dict[str, Any]:
    return text(f"x-anthropic-billing-header: cc_version=2.1.37; cc_entrypoint=cli; cch={number};")


class TestClaudeCodeBillingBlock:
    @pytest.mark.parametrize("place", [0, 1, 2])
    def test_is_removed_from_any_position_in_the_system_prompt(self, place: int) -> None:
        rules = [text("You are Claude Code."), text("Be brief.")]
        document = {"system": rules, "messages": [user("hi")]}
        for number in (1, 2):
            blocks = [*rules[:place], billing(number), *rules[place:]]
            billed = {"system": blocks, "messages": [user("hi")]}
            assert prompt_text(billed, LIMIT) == prompt_text(document, LIMIT)
            assert system_text(billed) == system_text(document)
            assert prompt_head(billed, LIMIT) == prompt_head(document, LIMIT)

    def test_alone_leaves_an_empty_system_prompt(self) -> None:
        document = {"system": [billing(1)], "messages": [user("hi")]}
        assert system_text(document) == ""
        assert prompt_text(document, LIMIT) == prompt_text({"messages": [user("hi")]}, LIMIT)

    def test_is_kept_where_engines_keep_it(self) -> None:
        """The engine removes blocks only from lists, and only from the field `system`."""
        line = billing(1)["text"]
        for document in (
            {"system": line, "messages": []},
            {"messages": [system(line), user("hi")]},
            {"messages": [user([billing(1)])]},
        ):
            assert line in prompt_text(document, LIMIT).text

    def test_cut_beginning_of_one_is_removed(self) -> None:
        line = billing(1)["text"]
        for length in range(1, len(line)):
            document = {"system": [text("rules"), text(line[:length])]}
            assert prompt_head(document, LIMIT, cut=True) == "rules"
            assert system_text(document, cut=True) == "rules"


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
