from __future__ import annotations

from typing import Any

import pytest

from extproc.core.request.prompt import (
    prompt_head,
    prompt_text,
)
from extproc.core.request.prompt_leaves import MEDIUM_BYTES
from tests.core.request.prompt_parts import LIMIT, leaves, text, user

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


def test_part_without_a_type_may_be_a_medium() -> None:
    """It may be one in vLLM, too."""
    typed = {"type": "image_url", "image_url": {"url": LONG}}
    one, other = (
        prompt_text({"messages": [user([part])]}, LIMIT)
        for part in (typed, {"image_url": {"url": LONG}})
    )
    assert one == other


class TestTextSimilarToMedium:
    @pytest.mark.parametrize(
        "part",
        [
            {"type": "document", "source": {"type": "text", "data": "so long"}},
            {"type": "document", "source": {"type": "content", "content": [text("so long")]}},
            {"type": "image", "source": {"type": "file", "file_id": "so long"}},
            {"type": "tool_use", "input": {"source": {"text": "so long"}}},
            {"type": "tool_use", "input": {"file": "so long"}},
            {"type": "tool_use", "input": {"type": "url", "image_url": "so long"}},
            {
                "type": "tool_use",
                "input": {"type": "x", "source": {"type": "url", "url": "so long"}},
            },
            {"function": {"arguments": {"type": "x", "image_url": "so long"}}},
            {"type": "search_result", "source": "so long"},
            {"type": "image", "source": {"type": ["base64"], "data": "so long"}},
            {"type": "image_url", "image_url": None, "uuid": "so long"},
        ],
    )
    def test_is_kept_unchanged(self, part: dict[str, Any]) -> None:
        assert leaves(prompt_text({"messages": [user([part])]}, LIMIT).text) == ["user", "so long"]

    @pytest.mark.parametrize("name", ["file", "source", "image_url", "input_audio", "file_data"])
    def test_parameter_of_a_tool_is_kept_unchanged(self, name: str) -> None:
        schema = {name: {"type": "url", "url": "so long"}, "type": {"type": "string"}}
        for tool in ({"type": "function", "function": {"parameters": schema}}, {"schema": schema}):
            document = {"tools": [tool], "messages": []}
            assert leaves(prompt_text(document, LIMIT).text) == ["so long"]
            assert prompt_head(document, LIMIT) == "so long"

    def test_text_that_contains_data_is_kept_unchanged(self) -> None:
        for long in ("database: " * 500, "see data:image/png;base64," + "QUJD" * 1000):
            assert leaves(prompt_text({"prompt": long}, LIMIT).text) == [long]
