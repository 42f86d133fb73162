from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.request.prompt import (
    prompt_head,
    prompt_text,
    system_text,
)
from tests.core import bodies
from tests.core.builders import brief
from tests.core.request.prompt_parts import IMAGE, LIMIT, TOOL, digest, leaves, system, text, user


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
            pytest.param({"input": "hi"}, [], ["user", "hi"], id="Responses, a string"),
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


class TestCacheControl:
    """Clients move `cache_control` from turn to turn. Engines do not put it in the prompt."""

    def test_is_not_part_of_the_prompt(self) -> None:
        marked = {**text("hi"), "cache_control": {"type": "ephemeral", "ttl": "1h"}}
        one, other = ({"messages": [user([part])]} for part in (text("hi"), marked))
        assert prompt_text(one, LIMIT) == prompt_text(other, LIMIT)
        assert prompt_head(one, LIMIT) == prompt_head(other, LIMIT)

    def test_is_no_part_of_tools_and_messages_without_a_type_either(self) -> None:
        control = {"type": "ephemeral", "ttl": "1h"}
        tool, message = {"name": "add"}, user("hi")
        plain = {"tools": [tool], "messages": [message]}
        marked = {
            "tools": [{**tool, "cache_control": control}],
            "messages": [{**message, "cache_control": control}],
        }
        assert prompt_text(marked, LIMIT) == prompt_text(plain, LIMIT)
        assert prompt_head(marked, LIMIT) == prompt_head(plain, LIMIT)


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
