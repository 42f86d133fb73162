from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from extproc.core.fleet.evicted_blocks import EvictedBlocks

MANY = 1_000
ONE, OTHER = list(range(10, 20)), list(range(30, 36))


def evicted(*pieces: list[int], most: int = MANY) -> EvictedBlocks:
    blocks = EvictedBlocks()
    for piece in pieces:
        blocks.add(piece, 1.0, most)
    return blocks


class TestTake:
    def test_finds_the_beginning_that_was_evicted(self) -> None:
        assert evicted(ONE, OTHER).take([*ONE, 20, 21]) == 10

    def test_finds_nothing_of_a_prompt_whose_next_block_was_not_evicted(self) -> None:
        assert evicted(ONE).take([9, *ONE]) == 0
        assert evicted(ONE).take([]) == 0

    def test_finds_pieces_that_were_evicted_one_after_another(self) -> None:
        assert evicted(ONE[6:], ONE[2:6], ONE[:2]).take(ONE) == 10

    def test_ends_where_the_prompt_differs(self) -> None:
        assert evicted(ONE).take([*ONE[:4], 50, 51]) == 4

    def test_ends_with_the_prompt(self) -> None:
        assert evicted(ONE).take(ONE[:3]) == 3

    def test_finds_blocks_once(self) -> None:
        blocks = evicted(ONE)
        assert (blocks.take(ONE), blocks.take(ONE), blocks.size) == (10, 0, 0)


class TestLimit:
    def test_drops_what_was_evicted_first(self) -> None:
        blocks = evicted(ONE, OTHER, most=17)
        assert (blocks.take(ONE), blocks.take(OTHER)) == (0, 6)

    def test_can_be_too_small_for_any_block(self) -> None:
        assert evicted(ONE, most=1).size == 0

    def test_counts_a_piece_once_that_is_evicted_again(self) -> None:
        assert evicted(ONE, ONE).size == evicted(ONE).size

    @given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 9)), max_size=30))
    def test_holds_for_any_pieces(self, pieces: list[tuple[int, int]]) -> None:
        blocks = EvictedBlocks()
        for start, length in pieces:
            blocks.add(range(start, start + length), 1.0, 25)
            assert blocks.size <= 25
        for start in range(20):
            blocks.take(range(start, 30))
        assert blocks.size >= 0
