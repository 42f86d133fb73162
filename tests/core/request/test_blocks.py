from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import permutations, takewhile
from typing import Any

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.request import blocks, prompt_leaves
from extproc.core.request.blocks import (
    BLOCK_BYTES,
    MAX_BLOCKS,
    MAX_PROMPT_BYTES,
    MAX_PROMPTS,
    Prompt,
    prompt_of,
)
from extproc.core.request.json_document import parse_document
from extproc.core.request.prompt import completion_prompts, prompt_text
from extproc.core.request.refusals import InvalidRequest
from tests.core import bodies
from tests.core.builders import brief, thorough

Json = dict[str, Any]

sizes = st.integers(1, 9)
single_prompts = bodies.documents.filter(lambda document: not completion_prompts(document))


@contextmanager
def blocks_of(size: int, most: int = MAX_BLOCKS) -> Iterator[None]:
    """Use blocks of so few bytes that a few words fill several."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK_BYTES", size)
        patch.setattr(blocks, "MAX_BLOCKS", most)
        patch.setattr(prompt_leaves, "MEDIUM_BYTES", 16)
        yield


def words(name: str, size: int) -> str:
    """Return a text of `size` bytes without repetition, whose beginning depends on the name."""
    return "".join(f"{name} {number}, " for number in range(size))[:size]


def common(one: Sequence[object], other: Sequence[object]) -> int:
    """Return the length of the common beginning."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def chain(document: Json, owner: str = "llama") -> Sequence[int]:
    return prompt_of(document, owner).blocks


def every_chain(prompt: Prompt) -> list[Sequence[int]]:
    """Return the chains of all prompts."""
    return [prompt.blocks, *prompt.other_chains]


def shared(one: Json, other: Json) -> int:
    """Return the number of bytes in the blocks that two prompts share."""
    return common(chain(one), chain(other)) * BLOCK_BYTES


def user(content: Any) -> Json:
    return {"role": "user", "content": content}


def system(content: Any) -> Json:
    return {"role": "system", "content": content}


def assistant(content: Any) -> Json:
    return {"role": "assistant", "content": content}


TEXT = words("once upon a time", 1000)
IDS = list(range(100_000, 100_200))


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


class TestPromptOfEveryApi:
    @pytest.mark.parametrize(
        "document",
        [
            pytest.param({"messages": [user(TEXT)]}, id="chat"),
            pytest.param({"messages": [user([{"type": "text", "text": TEXT}])]}, id="parts"),
            pytest.param({"prompt": TEXT}, id="completion"),
            pytest.param({"prompt": [TEXT]}, id="several prompts"),
            pytest.param({"prompt": [TEXT[:500], TEXT[500:]]}, id="prompts"),
            pytest.param({"prompt": IDS}, id="token ids"),
            pytest.param({"prompt": [IDS[:100], IDS[100:]]}, id="lists of token ids"),
            pytest.param({"input": TEXT}, id="Responses, a string"),
            pytest.param(
                {"input": [user([{"type": "input_text", "text": TEXT}])]}, id="Responses, items"
            ),
            pytest.param({"instructions": TEXT, "input": "hi"}, id="Responses, instructions"),
            pytest.param({"system": TEXT, "messages": [user("hi")]}, id="Anthropic"),
            pytest.param(
                {"system": [{"type": "text", "text": TEXT}], "messages": []}, id="Anthropic, parts"
            ),
        ],
    )
    def test_contains_all_of_the_text(self, document: Json) -> None:
        prompt = prompt_of(document, "llama")
        assert 1000 <= prompt.bytes <= 1000 + 500
        prompts = len(completion_prompts(document)) or 1
        assert prompt.block_count >= 4 - prompts
        assert prompt.bytes // BLOCK_BYTES - prompts < prompt.block_count
        assert prompt.block_count <= prompt.bytes // BLOCK_BYTES

    @pytest.mark.parametrize(
        "document", [{}, {"messages": []}, {"prompt": ""}, {"model": TEXT, "user": TEXT}]
    )
    def test_without_a_prompt_has_no_blocks(self, document: Json) -> None:
        prompt = prompt_of(document, "llama")
        assert (list(prompt.blocks), prompt.system_blocks) == ([], 0)
        assert prompt.bytes <= 1

    def test_equal_parts_give_equal_blocks(self) -> None:
        as_string = {"messages": [user(TEXT)]}
        as_part = {"messages": [user([{"type": "text", "text": TEXT}])]}
        assert chain(as_string) == chain(as_part)

    def test_different_images_give_different_blocks(self) -> None:
        def picture(data: str) -> Json:
            url = {"url": f"data:image/png;base64,{data * 5000}"}
            return {"messages": [user([{"type": "image_url", "image_url": url}, TEXT])]}

        assert chain(picture("QUJD")) == chain(picture("QUJD"))
        assert shared(picture("QUJD"), picture("REVG")) == 0


class TestSeveralPrompts:
    def test_have_the_same_chains_as_separate_prompts(self) -> None:
        texts = [words(f"prompt {number}", 700) for number in range(3)]
        for prompts in (texts, [IDS, IDS[::-1], IDS[50:]]):
            together = prompt_of({"prompt": prompts}, "llama")
            alone = [prompt_of({"prompt": one}, "llama") for one in prompts]
            assert every_chain(together) == [one.blocks for one in alone]
            assert together.bytes == sum(one.bytes for one in alone)

    def test_shorter_than_a_block_have_no_chain(self) -> None:
        together = prompt_of({"prompt": ["a", TEXT, "b", TEXT]}, "llama")
        assert [len(one) for one in every_chain(together)] == [0, 3, 3]
        assert together.bytes == 2 * 1001 + 4

    @pytest.mark.parametrize("number", [2, MAX_PROMPTS, MAX_PROMPTS + 100, 20_000])
    def test_beyond_the_limit_only_count_towards_the_size(self, number: int) -> None:
        together = prompt_of({"prompt": [words(f"{n}", 600) for n in range(number)]}, "llama")
        assert len(every_chain(together)) == min(number, MAX_PROMPTS)
        assert together.bytes == min(601 * number, MAX_PROMPT_BYTES)

    def test_share_the_limit_on_blocks(self) -> None:
        long = [words(f"{number}", 300_000) for number in range(3)]
        together = prompt_of({"prompt": long}, "llama")
        assert MAX_BLOCKS - 2 <= together.block_count <= MAX_BLOCKS


class TestVeryLongPrompt:
    def test_text_beyond_the_limit_only_counts_towards_the_size(self) -> None:
        messages = [user(words(f"{number}", 10_000)) for number in range(100)]
        prompt = prompt_of({"messages": messages}, "llama")
        assert len(prompt.blocks) == MAX_BLOCKS
        assert prompt.bytes == pytest.approx(1_000_000, rel=0.01)

    @brief
    @given(bodies.documents, sizes, st.integers(1, 6))
    def test_has_the_first_blocks(self, asked: Json, size: int, most: int) -> None:
        with blocks_of(size):
            whole = prompt_of(asked, "llama")
        with blocks_of(size, most):
            part = prompt_of(asked, "llama")
        assert part.blocks == whole.blocks[:most]
        assert part.system_blocks == min(whole.system_blocks, most)

    def test_can_be_a_single_string(self) -> None:
        prompt = prompt_of({"prompt": "世界 " * 300_000}, "llama")
        assert len(prompt.blocks) == MAX_BLOCKS
        assert prompt.bytes == pytest.approx(7 * 300_000, rel=0.01)

    def test_estimated_size_is_limited(self) -> None:
        assert prompt_of({"prompt": TEXT}, "llama", share=1e-9).bytes == MAX_PROMPT_BYTES
        assert prompt_of({"prompt": "x" * 5_000_000}, "llama").bytes == MAX_PROMPT_BYTES


class TestVisibleShare:
    @pytest.mark.parametrize("share", [1.0, 0.5, 0.25, 0.01])
    def test_scales_the_estimated_size(self, share: float) -> None:
        whole = prompt_of({"prompt": TEXT}, "llama")
        part = prompt_of({"prompt": TEXT}, "llama", share=share)
        assert part.bytes == round(whole.bytes / share)
        assert (part.blocks, part.system_blocks) == (whole.blocks, whole.system_blocks)


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


class TestUnusualBodies:
    @pytest.mark.parametrize(
        "document",
        [
            {"messages": None, "tools": None, "system": None},
            {"messages": 7, "tools": True, "system": {"x": None}},
            {"messages": {"role": "user", "content": TEXT}},
            {"messages": [None, 7, "x", [], {}, [[]], {"role": None}]},
            {"messages": [{"role": ["system"], "content": "x"}, {"role": {}, "content": "x"}]},
            {"messages": [{"role": 7.5, "content": {"a": [{"b": "c"}]}}]},
            {"prompt": [[], [None], "x", 3, True, -1.5e300]},
            {"prompt": float("nan"), "input": float("inf")},
            {"instructions": [[["x"]]], "input": {"input": "x"}},
            {"prompt": 10**4000},
        ],
    )
    def test_raise_no_error(self, document: Json) -> None:
        prompt = prompt_of(document, "llama")
        assert prompt.bytes >= len(prompt.blocks) * BLOCK_BYTES

    @brief
    @given(
        st.dictionaries(
            st.sampled_from(["messages", "input", "prompt", "tools", "system", "instructions"]),
            bodies.values | st.lists(st.dictionaries(st.just("role"), bodies.values)),
        )
    )
    def test_with_wrong_types_raise_no_error(self, document: Json) -> None:
        body = bodies.written(document)
        with blocks_of(3):
            prompt_of(parse_document(body, complete=True), "llama")
            for cut in bodies.cuts(body):
                prompt_of(parse_document(cut, complete=False), "llama")

    def test_can_be_as_deep_as_the_parser_allows(self) -> None:
        depth = 0
        for levels in range(1, 400):
            body = b'{"messages": ' + b"[" * levels + b'"x"' + b"]" * levels + b"}"
            try:
                document = parse_document(body, complete=True)
            except InvalidRequest:
                break
            depth = levels
            assert prompt_of(document, "llama").bytes < 10
        assert 100 < depth < 399
