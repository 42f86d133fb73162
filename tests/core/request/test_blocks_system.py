from __future__ import annotations

import pytest

from extproc.core.request.blocks import (
    BLOCK_BYTES,
    Prompt,
    prompt_of,
)
from tests.core.request.block_prompts import (
    Json,
    system,
    user,
    words,
)

LONG = words("rules", 2400)


LONG_TOOL = {"type": "function", "function": {"name": "add", "description": LONG}}


class TestSystemHash:
    """Many requests share a system prompt. A long one has a home endpoint of its own."""

    def prompt(self, system_blocks: int, all_blocks: int) -> Prompt:
        return Prompt(range(100, 100 + all_blocks), BLOCK_BYTES * all_blocks, system_blocks)

    @pytest.mark.parametrize(("system_blocks", "all_blocks"), [(8, 8), (8, 100), (9, 10)])
    def test_is_the_last_block_of_the_system_prompt(
        self, system_blocks: int, all_blocks: int
    ) -> None:
        assert self.prompt(system_blocks, all_blocks).system_hash == 100 + system_blocks - 1

    @pytest.mark.parametrize(("system_blocks", "all_blocks"), [(0, 0), (0, 9), (7, 7), (7, 100)])
    def test_is_none_for_a_short_system_prompt(self, system_blocks: int, all_blocks: int) -> None:
        assert self.prompt(system_blocks, all_blocks).system_hash is None

    @pytest.mark.parametrize(
        "opening",
        [
            pytest.param({"messages": [system(LONG)]}, id="a message"),
            pytest.param({"messages": [{"role": "developer", "content": LONG}]}, id="developer"),
            pytest.param({"messages": [system(LONG[:900]), system(LONG[900:])]}, id="two"),
            pytest.param({"messages": [], "system": LONG}, id="Anthropic"),
            pytest.param({"input": [], "instructions": LONG}, id="Responses"),
            pytest.param({"messages": [], "tools": [LONG_TOOL]}, id="tools"),
            pytest.param(
                {"messages": [system(LONG)], "tools": [LONG_TOOL]}, id="tools and message"
            ),
        ],
    )
    def test_does_not_depend_on_the_messages(self, opening: Json) -> None:
        field = "messages" if "messages" in opening else "input"
        prompts = [
            prompt_of({**opening, field: opening[field] + [user(question)]}, "llama")
            for question in ("hi", "tell me of the sea", words("why", 400))
        ]
        assert {len(prompt.blocks) > prompt.system_blocks for prompt in prompts} == {False, True}
        (home,) = {prompt.system_hash for prompt in prompts}
        assert home is not None

    def test_does_not_include_user_messages(self) -> None:
        late = {"messages": [user(LONG), system(LONG)]}
        assert prompt_of(late, "llama").system_blocks == 0
        assert prompt_of({"prompt": LONG}, "llama").system_blocks == 0
