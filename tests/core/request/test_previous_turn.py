from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.request.blocks import BLOCK_BYTES, MAX_BLOCKS, prompt_of
from extproc.core.request.previous_turn import previous_turn
from extproc.core.request.prompt import prompt_text
from tests.core.builders import brief
from tests.core.request.block_prompts import assistant, user
from tests.core.request.prompt_parts import LIMIT, system

CALL = {"type": "function_call", "name": "add", "arguments": "{}", "call_id": "1"}
OUTPUT = {"type": "function_call_output", "call_id": "1", "output": "3"}
REASONING = {"type": "reasoning", "summary": []}
TOOL_RESULT = {"role": "tool", "tool_call_id": "1", "content": "3"}


class TestPreviousTurn:
    @pytest.mark.parametrize(
        ("items", "number", "answered"),
        [
            pytest.param([], 0, 0, id="no items"),
            pytest.param([system("s"), user("a")], 0, 0, id="a first turn"),
            pytest.param([user("a"), assistant("b"), user("c")], 1, 2, id="a second turn"),
            pytest.param(
                [user("a"), assistant("b"), user("c"), assistant("d"), user("e"), user("f")],
                3,
                4,
                id="several messages of the client",
            ),
            pytest.param(
                [user("a"), assistant("b"), TOOL_RESULT, TOOL_RESULT], 1, 2, id="results of tools"
            ),
            pytest.param(
                [user("a"), REASONING, CALL, CALL, OUTPUT, OUTPUT], 1, 4, id="calls in Responses"
            ),
            pytest.param(
                [user("a"), CALL, OUTPUT, REASONING, CALL, OUTPUT], 3, 5, id="calls one by one"
            ),
            pytest.param(
                [user("a"), {"type": "mcp_list_tools"}, {"type": "mcp_call"}, user("b")],
                1,
                3,
                id="calls of the server",
            ),
            pytest.param([user("a"), assistant("b")], 0, 0, id="a begun response"),
            pytest.param(
                [user("a"), assistant("b"), user("c"), assistant("d")],
                1,
                2,
                id="a begun response in a second turn",
            ),
            pytest.param([assistant("a"), user("b")], 0, 0, id="a response to nothing"),
            pytest.param(
                ["a", 1, None, {"role": ["assistant"], "type": 1}], 0, 0, id="other types"
            ),
        ],
    )
    def test_is_what_is_before_the_last_response_and_that(
        self, items: list[Any], number: int, answered: int
    ) -> None:
        assert previous_turn(items) == (number, answered)

    def test_of_a_cut_body_ends_before_the_last_visible_response(self) -> None:
        items = [user("a"), assistant("b"), user("c"), assistant("d")]
        assert [tuple(previous_turn(items[:number], cut=True)) for number in range(5)] == [
            (0, 0),
            (0, 0),
            (1, 2),
            (1, 2),
            (3, 4),
        ]

    def test_is_searched_in_the_last_items_only(self) -> None:
        for later in (10, 1000):
            items = [user("a"), assistant("b"), *[user("c")] * later]
            assert previous_turn(items) == ((1, 2) if later == 10 else (0, 0))


class TestPreviousText:
    @pytest.mark.parametrize("field", ["messages", "input"])
    def test_includes_system_prompt_and_tools(self, field: str) -> None:
        document = {field: [system("s"), user("a"), assistant("b"), user("c")], "tools": ["t"]}
        found = prompt_text(document, LIMIT)
        assert found.text[: found.previous_chars] == "\nt\nsystem\ns\nuser\na"
        response = found.text[found.previous_chars : found.answered_chars]
        assert response == "\nassistant\nb"

    @pytest.mark.parametrize("prompt", ["once", ["once"], [1, 2]])
    def test_is_empty_for_completions(self, prompt: Any) -> None:
        assert prompt_text({"prompt": prompt}, LIMIT).previous_chars == 0


class TestTurn:
    """Bodies of a conversation, whose turns are recognized by the hash of the whole prompt."""

    @brief
    @given(
        st.sampled_from(["ü" * 300, "brief"]),
        st.lists(st.text(), min_size=1, max_size=4),
        st.text(),
        st.text(min_size=1),
    )
    def test_is_the_previous_one_of_the_next(
        self, rules: str, earlier: list[str], answer: str, question: str
    ) -> None:
        messages = [system(rules), *map(user, earlier)]
        before = prompt_of({"messages": messages}, "llama")
        answered = [*messages, assistant(answer)]
        after = prompt_of({"messages": [*answered, user(question)]}, "llama")
        assert before.turn is not None
        assert before.turn == after.previous_turn != after.turn
        assert before.previous_turn is None
        assert after.answered_bytes == prompt_of({"messages": answered}, "llama").bytes
        assert after.answered_bytes < after.bytes

    @pytest.mark.parametrize(
        ("messages", "owner"),
        [([user("hi"), user("")], "llama"), ([user("hi!")], "llama"), ([user("hi")], "sql")],
        ids=["another message", "another text", "another adapter"],
    )
    def test_is_another_one_after_any_difference(self, messages: list[Any], owner: str) -> None:
        hi = prompt_of({"messages": [user("hi")]}, "llama")
        assert prompt_of({"messages": messages}, owner).turn != hi.turn

    def test_is_unknown_unless_the_whole_prompt_is_compared(self) -> None:
        long = user("a" * BLOCK_BYTES * MAX_BLOCKS)
        assert prompt_of({"messages": [long, user("b")]}, "llama").turn is None
        assert prompt_of({"messages": [user("a")]}, "llama", cut=True).turn is None

    @pytest.mark.parametrize(
        "document",
        [
            {"prompt": "a"},
            {"prompt": ["a", "b"]},
            {"prompt": [1, 2]},
            {"input": "a", "previous_response_id": "resp_1"},
            {},
        ],
    )
    def test_is_unknown_unless_the_next_one_contains_it(self, document: dict[str, Any]) -> None:
        assert prompt_of(document, "llama").turn is None


class TestPreviousBlocks:
    @brief
    @given(st.lists(st.text(), min_size=1, max_size=4), st.text(), st.text())
    def test_are_those_of_the_turn_before(
        self, earlier: list[str], answer: str, question: str
    ) -> None:
        messages = [system("ü" * 300), *map(user, earlier)]
        before = prompt_of({"messages": messages}, "llama")
        after = prompt_of({"messages": [*messages, assistant(answer), user(question)]}, "llama")
        assert before.previous_blocks == 0
        assert after.previous_blocks == len(before.blocks)
        assert after.blocks[: after.previous_blocks] == before.blocks

    def test_are_at_most_those_that_are_compared(self) -> None:
        long = user("a" * (BLOCK_BYTES * MAX_BLOCKS + 1000))
        found = prompt_of({"messages": [long, assistant("b"), user("c")]}, "llama")
        assert found.previous_blocks == len(found.blocks) == MAX_BLOCKS
