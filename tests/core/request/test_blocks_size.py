from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.request.blocks import (
    BLOCK_BYTES,
    MAX_BLOCKS,
    MAX_PROMPT_BYTES,
    MAX_PROMPTS,
    prompt_of,
)
from extproc.core.request.json_document import parse_document
from extproc.core.request.prompt import completion_prompts
from extproc.core.request.refusals import InvalidRequest
from tests.core import bodies
from tests.core.builders import brief
from tests.core.request.block_prompts import (
    IDS,
    TEXT,
    Json,
    blocks_of,
    chain,
    every_chain,
    shared,
    sizes,
    user,
    words,
)


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
    @given(bodies.any_documents(st.floats()))
    def test_with_wrong_types_raise_no_error(self, document: Json) -> None:
        body = bodies.written(document)
        with blocks_of(3):
            prompt_of(parse_document(body, complete=True), "llama")
            for cut in bodies.cuts(body):
                prompt_of(parse_document(cut, complete=False), "llama", cut=True)

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
