"""Blocks as bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.sharing.batch import packed, unpacked

BLOCKS = st.lists(st.integers(0, 2**64 - 1))


@given(BLOCKS)
def test_packed_blocks_are_unpacked_as_they_were(blocks: list[int]) -> None:
    assert unpacked(packed(blocks)) == blocks


@given(BLOCKS)
def test_a_block_takes_eight_bytes(blocks: list[int]) -> None:
    assert len(packed(blocks)) == 8 * len(blocks)


def test_blocks_are_little_endian() -> None:
    assert packed([1, 2**63]) == b"\1\0\0\0\0\0\0\0" + b"\0\0\0\0\0\0\0\x80"


@pytest.mark.parametrize("excess", range(1, 8))
def test_an_incomplete_block_at_the_end_is_ignored(excess: int) -> None:
    assert unpacked(packed([7, 8]) + b"\xff" * excess) == [7, 8]


@given(st.binary(max_size=100))
def test_any_bytes_are_blocks(garbage: bytes) -> None:
    assert len(unpacked(garbage)) == len(garbage) // 8
