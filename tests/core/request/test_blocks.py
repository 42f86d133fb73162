from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import permutations
from typing import Any

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.request.blocks import (
    BLOCK_BYTES,
    prompt_of,
)
from extproc.core.request.json_document import parse_document
from extproc.core.request.prompt import prompt_text
from tests.core import bodies
from tests.core.builders import brief, thorough
from tests.core.request.block_prompts import (
    TEXT,
    Json,
    assistant,
    blocks_of,
    chain,
    common,
    every_chain,
    shared,
    single_prompts,
    sizes,
    system,
    user,
    words,
)


class TestEqualHashes:
    @thorough
    @given(single_prompts, single_prompts, sizes)
    def test_mean_equal_text_up_to_the_end_of_the_block(
        self, one: Json, other: Json, size: int
    ) -> None:
        with blocks_of(size):
            first, second = chain(one), chain(other)
            texts = [prompt_text(document, 10**6).text.encode() for document in (one, other)]
        assert [len(first), len(second)] == [len(text) // size for text in texts]
        for i, block in enumerate(first):
            for j, another in enumerate(second):
                ends = [text[: size * (n + 1)] for text, n in zip(texts, (i, j), strict=True)]
                assert (block == another) == (ends[0] == ends[1])

    @brief
    @given(st.text(max_size=20), st.text(max_size=20), bodies.documents)
    def test_mean_the_same_model_or_adapter(self, one: str, other: str, asked: Json) -> None:
        with blocks_of(1):
            mine, theirs = chain(asked, one), chain(asked, other)
        if one == other:
            assert mine == theirs
        else:
            assert set(mine).isdisjoint(theirs)

    def test_end_at_the_first_difference_of_the_texts(self) -> None:
        text = words("the same", 10 * BLOCK_BYTES)
        one, other = ({"messages": [user(text), assistant(end)]} for end in ("yes " * 99, "no"))
        assert 10 * BLOCK_BYTES <= shared(one, other) <= 11 * BLOCK_BYTES

    def test_do_not_recur_after_a_different_beginning(self) -> None:
        text = words("the same", 10 * BLOCK_BYTES)
        one, other = ({"prompt": end + text} for end in ("x" * BLOCK_BYTES, "y" * BLOCK_BYTES))
        assert set(chain(one)).isdisjoint(chain(other))

    def test_of_known_texts_are_stable(self) -> None:
        """During an update, sidecars of two releases must agree."""
        text = b"\nsystem\nbe brief\nuser\n" + b"tell me " * 63
        first = xxhash.xxh64_intdigest(text[:256], xxhash.xxh64_intdigest(b"llama"))
        second = xxhash.xxh64_intdigest(text[256:512], first)
        messages = [system("be brief"), user("tell me " * 63)]
        assert chain({"messages": messages}) == [first, second]


class TestConversation:
    def test_starts_with_all_blocks_of_the_previous_turn(self) -> None:
        messages: list[Json] = [system(words("rules", 700))]
        before: Sequence[int] = ()
        for number in range(8):
            messages.append(user(words(f"question {number}", 130 * number)))
            now = chain({"messages": messages})
            assert list(now[: len(before)]) == list(before)
            assert len(now) > len(before) or number == 0
            before = now
            messages.append(assistant(words(f"answer {number}", 300)))

    def test_roles_change_the_blocks(self) -> None:
        text = words("words", 3 * BLOCK_BYTES)
        assert shared({"messages": [user(text)]}, {"messages": [assistant(text)]}) == 0

    def test_non_text_content_changes_the_blocks(self) -> None:
        long = words("argument", 3 * BLOCK_BYTES)
        call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": long}}
        made = {"role": "assistant", "content": None, "tool_calls": [call]}
        result = {"role": "tool", "tool_call_id": "c1", "content": long}
        assert len(chain({"messages": [user("add!"), made, result]})) == 6


TOOL = {"type": "function", "function": {"name": "add", "description": words("add", 600)}}


OTHER_TOOL = {"type": "function", "function": {"name": "sub", "description": words("sub", 600)}}


RULES = words("rules", 600)


ASKED = [user(words("question", 600))]


class TestOrderOfFields:
    @thorough
    @given(bodies.documents, sizes, st.randoms(use_true_random=False))
    def test_order_in_the_body_does_not_matter(self, asked: Json, size: int, random: Any) -> None:
        items = list(asked.items())
        random.shuffle(items)
        with blocks_of(size):
            assert prompt_of(dict(items), "llama") == prompt_of(asked, "llama")

    def test_text_has_the_order_of_chat_templates(self) -> None:
        fields = {"tools": [TOOL], "system": RULES, "messages": ASKED}
        prompts = [prompt_of(dict(items), "llama") for items in permutations(fields.items())]
        assert all(prompt == prompts[0] for prompt in prompts)
        assert prompts[0].blocks == chain({"messages": [user_like(TOOL), user_like(RULES), *ASKED]})

    def test_tools_come_before_the_system_prompt(self) -> None:
        one = {"messages": [system(RULES), *ASKED], "tools": [TOOL]}
        other = {"messages": [system(words("others", 600)), *ASKED], "tools": [TOOL]}
        assert shared(one, other) == 2 * BLOCK_BYTES
        assert shared(one, {**one, "tools": [OTHER_TOOL]}) == 0

    def test_system_prompt_comes_before_messages_in_every_api(self) -> None:
        for field, rest in (("system", "messages"), ("instructions", "input")):
            other = [user(words("another", 600))]
            assert shared({field: RULES, rest: ASKED}, {rest: other, field: RULES}) >= 512
            assert shared({rest: ASKED, field: RULES}, {rest: ASKED}) == 0


def user_like(leaves: Any) -> Json:
    """Return a message with these leaves and no role."""
    return {"content": leaves}


def in_template_order(document: Json) -> Json:
    """Return the document with its fields in the order of a chat template."""
    order = ("model", "tools", "system", "instructions", "messages", "input", "prompt")
    return {field: document[field] for field in order if field in document}


@pytest.mark.parametrize("texts", [["a" * 700], ["a" * 700, "b" * 300, "c" * 512]])
def test_most_compared_blocks_have_room_for_the_end_of_each_prompt(texts: list[str]) -> None:
    found = prompt_of({"model": "llama", "prompt": texts}, "llama")
    assert found.block_count == sum(len(text) // BLOCK_BYTES for text in texts)
    assert found.most_compared_blocks == found.block_count + len(texts)
    assert found.bytes <= BLOCK_BYTES * found.most_compared_blocks


class TestCutBody:
    @brief
    @given(bodies.documents, sizes, st.booleans(), st.booleans())
    def test_gives_the_beginning_of_the_whole_chain(
        self, asked: Json, size: int, compact: bool, ascii_only: bool
    ) -> None:
        asked = in_template_order({"model": "llama", **asked})
        body = bodies.written(asked, compact=compact, ascii_only=ascii_only)
        with blocks_of(size):
            whole = prompt_of(parse_document(body, complete=True), "llama")
            for cut in bodies.cuts(body):
                seen = prompt_of(parse_document(cut, complete=False), "llama", cut=True)
                assert seen.blocks == whole.blocks[: len(seen.blocks)]
                assert all(
                    any(list(part) == list(chain[: len(part)]) for chain in every_chain(whole))
                    for part in seen.other_chains
                )
                assert seen.bytes <= whole.bytes
                assert seen.system_blocks <= whole.system_blocks

    def test_text_loses_less_than_one_block(self) -> None:
        body = json.dumps({"model": "llama", "messages": [user(words("prose", 5000))]}).encode()
        for length in range(1000, len(body), 37):
            seen = prompt_of(parse_document(body[:length], complete=False), "llama")
            overhead = body.index(b"prose")
            assert len(seen.blocks) >= (length - overhead) // BLOCK_BYTES

    def test_missing_tools_give_another_chain(self) -> None:
        # This cannot be avoided. Equal bodies still have equal chains.
        body = json.dumps({"messages": ASKED, "tools": [TOOL]}).encode()
        whole = prompt_of(parse_document(body, complete=True), "llama").blocks
        cut = prompt_of(parse_document(body[:700], complete=False), "llama").blocks
        assert len(cut) == 2
        assert common(whole, cut) == 0

    def test_cut_inside_a_character_drops_only_that_character(self) -> None:
        body = json.dumps({"prompt": "世界" * 300}, ensure_ascii=False).encode()
        whole = prompt_of(parse_document(body, complete=True), "llama").blocks
        for length in range(900, 910):
            cut = prompt_of(parse_document(body[:length], complete=False), "llama").blocks
            assert len(cut) == 3
            assert cut == whole[:3]

    def test_cut_inside_an_image_keeps_the_text_before_it(self) -> None:
        url = {"url": "data:image/png;base64," + "QUJD" * 50_000}
        parts = [{"type": "text", "text": TEXT}, {"type": "image_url", "image_url": url}]
        body = json.dumps({"messages": [user(parts)]}).encode()
        whole = prompt_of(parse_document(body, complete=True), "llama").blocks
        for length in (1200, 2000, 3000, 65_536):
            cut = prompt_of(parse_document(body[:length], complete=False), "llama").blocks
            assert common(whole, cut) >= 1000 // BLOCK_BYTES
