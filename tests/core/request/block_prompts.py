"""Prompts and small blocks for the tests of chains of blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from typing import Any

import pytest
from hypothesis import strategies as st

from extproc.core.request import blocks, prompt_leaves
from extproc.core.request.blocks import (
    BLOCK_BYTES,
    MAX_BLOCKS,
    Prompt,
    prompt_of,
)
from extproc.core.request.prompt import completion_prompts
from tests.core import bodies

Json = dict[str, Any]


sizes = st.integers(1, 9)


single_prompts = bodies.documents.filter(lambda document: not completion_prompts(document))


@contextmanager
def blocks_of(size: int, most: int = MAX_BLOCKS) -> Iterator[None]:
    """Set the size of blocks and their limit, so that a few words can fill several blocks."""
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
