"""Ids of cache blocks, compared with the plain definition, which writes every token out."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.lab.simulation.block_ids import BlockIds
from extproc.lab.workloads.workload import Segment, Turn, conversation
from tests.extent import extent
from tests.lab.simulation.builders import turn

Token = tuple[str, int]


def tokens(asked: Turn) -> list[Token]:
    """Return all tokens of a turn, prompt and response: the text, and the position in it."""
    segments = (*asked.prompt, asked.output)
    return [(one.name, place) for one in segments for place in range(one.tokens)]


def plain(asked: Turn, size: int) -> list[Hashable]:
    """Return hashes as vLLM does: each full block with all before it, and the adapter."""
    written = tokens(asked)
    return [(asked.adapter, tuple(written[:end])) for end in range(size, len(written) + 1, size)]


def shared(first: Sequence[object], second: Sequence[object]) -> int:
    """Return the number of common blocks at the start."""
    pairs = zip(first, second, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))


# Few names and short texts, so that prefixes meet in all possible ways.
segments = st.builds(Segment, st.sampled_from("abc"), st.integers(1, 9))
turns = st.builds(
    Turn,
    st.lists(segments, min_size=1, max_size=4).map(tuple),
    segments,
    st.sampled_from(["", "a", "lora"]),
)


@settings(max_examples=extent(40, 300))
@given(st.lists(turns, min_size=2, max_size=5), st.integers(1, 5))
def test_ids_are_equal_exactly_if_blocks_are(asked: list[Turn], size: int) -> None:
    ids = BlockIds(size)
    ours = [ids.of(one) for one in asked]
    theirs = [plain(one, size) for one in asked]
    for (a, first), (b, second) in product(enumerate(ours), repeat=2):
        equal = [one == other for one, other in product(first, second)]
        assert equal == [one == other for one, other in product(theirs[a], theirs[b])]


@settings(deadline=None)
@given(turns, turns, st.integers(1, 5))
def test_two_turns_share_the_blocks_of_their_common_prefix(
    first: Turn, second: Turn, size: int
) -> None:
    ids = BlockIds(size)
    common = shared(tokens(first), tokens(second)) if first.adapter == second.adapter else 0
    assert shared(ids.of(first), ids.of(second)) == common // size


@settings(deadline=None)
@given(turns, st.integers(1, 40))
def test_each_full_block_of_prompt_and_response_has_an_id(asked: Turn, size: int) -> None:
    found = BlockIds(size).of(asked)
    assert len(found) == (asked.prompt_tokens + asked.output.tokens) // size
    assert len(set(found)) == len(found)


def test_ids_are_stable() -> None:
    ids = BlockIds(16)
    first = ids.of(turn("one", 100, 20))
    ids.of(turn("another", 50, 5))
    assert ids.of(turn("one", 100, 20)) == first


def test_the_block_across_the_prompts_end_belongs_to_the_response() -> None:
    ids = BlockIds(16)
    one = turn("question", 40, 40)
    other = one._replace(output=Segment("another answer", 40, "assistant"))
    # 40 tokens are two blocks and a half; the response fills the half.
    assert shared(ids.of(one), ids.of(other)) == 2
    assert len(ids.of(one)) == len(ids.of(other)) == 5


@settings(deadline=None)
@given(turns, st.integers(1, 5))
def test_the_prompt_alone_has_the_ids_before_the_response(asked: Turn, size: int) -> None:
    ids = BlockIds(size)
    both, alone = ids.of(asked), ids.of_prompt(asked)
    assert alone == both[: asked.prompt_tokens // size]


def test_the_next_turn_begins_with_the_blocks_of_prompt_and_response() -> None:
    ids = BlockIds(16)
    first, second = conversation("talk", (), [20, 30], [25, 5])
    assert shared(ids.of(first), ids.of(second)) == (20 + 25) // 16 == len(ids.of(first))


def test_a_shortened_text_is_a_prefix_of_the_whole() -> None:
    ids = BlockIds(16)
    assert shared(ids.of(turn("text", 64, 1)), ids.of(turn("text", 100, 1))) == 4


def test_blocks_after_different_lengths_of_a_text_differ() -> None:
    ids = BlockIds(16)
    long = turn("end", 32, 1, opening=[Segment("opening", 32)])
    short = turn("end", 32, 1, opening=[Segment("opening", 16)])
    assert shared(ids.of(long), ids.of(short)) == 1
    assert len({*ids.of(long), *ids.of(short)}) == 4 + 3 - 1


def test_an_adapter_shares_no_blocks() -> None:
    ids = BlockIds(16)
    asked = [turn("question", 64, 16, adapter) for adapter in ("", "sql", "poems")]
    assert len({one for each in asked for one in ids.of(each)}) == 3 * 5


@pytest.mark.parametrize(("size", "blocks"), [(1, 48), (16, 3), (48, 1), (49, 0)])
def test_blocks_have_the_engines_size(size: int, blocks: int) -> None:
    assert len(BlockIds(size).of(turn("question", 40, 8))) == blocks


def test_a_very_long_text_does_not_overlap_the_next() -> None:
    ids = BlockIds(16)
    long = turn("book", 1_000_000, 16)
    assert set(ids.of(long)).isdisjoint(ids.of(turn("other", 1_000_000, 16)))
