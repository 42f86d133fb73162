"""The paged prefix cache: matches, evictions and the number of blocks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from extproc.lab.engine.kv_cache import Holding, PrefixCache


def compute(cache: PrefixCache, ids: list[str]) -> Holding:
    """Hold the blocks of a request as the engine does: cached ones and new named ones."""
    hits = cache.match(ids)
    holding = cache.acquire(ids, hits, len(ids) - hits)
    assert holding is not None
    for block in ids[hits:]:
        cache.name(holding, block)
    return holding


class TestMatch:
    def test_a_new_cache_has_no_blocks(self) -> None:
        assert PrefixCache(4).match(["a"]) == 0

    def test_finds_held_named_blocks(self) -> None:
        cache = PrefixCache(4)
        compute(cache, ["a", "b"])
        assert cache.match(["a", "b", "c"]) == 2

    def test_finds_released_blocks(self) -> None:
        cache = PrefixCache(4)
        cache.release(compute(cache, ["a", "b"]))
        assert cache.match(["a", "b"]) == 2

    def test_ends_at_the_first_missing_block(self) -> None:
        cache = PrefixCache(4)
        compute(cache, ["a", "c"])
        assert cache.match(["a", "b", "c"]) == 1

    def test_does_not_find_anonymous_blocks(self) -> None:
        cache = PrefixCache(4)
        assert cache.acquire(["a"], 0, 1) is not None
        assert cache.match(["a"]) == 0

    def test_clear_drops_idle_blocks_only(self) -> None:
        cache = PrefixCache(4)
        compute(cache, ["a"])
        cache.release(compute(cache, ["x", "y"]))
        cache.clear()
        assert (cache.match(["a"]), cache.match(["x"])) == (1, 0)
        assert cache.used == 1


class TestSharing:
    def test_counts_a_shared_block_once(self) -> None:
        cache = PrefixCache(4)
        compute(cache, ["a", "b"])
        compute(cache, ["a", "c"])
        assert cache.used == 3

    def test_holds_a_shared_block_until_its_last_release(self) -> None:
        cache = PrefixCache(2)
        first, second = compute(cache, ["a"]), compute(cache, ["a"])
        cache.release(first)
        assert cache.used == 1
        cache.release(second)
        assert cache.used == 0

    def test_holds_two_copies_of_a_block_computed_twice(self) -> None:
        cache = PrefixCache(4)
        holdings = [cache.acquire(["a"], 0, 1) for _ in range(2)]
        for holding in holdings:
            assert holding is not None
            cache.name(holding, "a")
        assert (cache.used, cache.findable) == (2, 1)

    def test_ignores_a_second_release(self) -> None:
        cache = PrefixCache(4)
        compute(cache, ["a"])
        holding = compute(cache, ["a", "b"])
        cache.release(holding)
        cache.release(holding)
        assert cache.used == 1


class TestCapacity:
    def test_refuses_a_cache_without_blocks(self) -> None:
        with pytest.raises(ValueError, match="at least"):
            PrefixCache(0)

    def test_usage_counts_held_blocks(self) -> None:
        cache = PrefixCache(4)
        holding = compute(cache, ["a", "b"])
        assert cache.usage == 0.5
        cache.release(holding)
        assert cache.usage == 0.0

    def test_acquire_without_room_changes_nothing(self) -> None:
        cache = PrefixCache(3)
        compute(cache, ["a", "b"])
        assert cache.acquire(["a", "x", "y"], 1, 2) is None
        assert (cache.used, cache.match(["a", "b"])) == (2, 2)

    def test_revived_idle_blocks_take_room(self) -> None:
        cache = PrefixCache(2)
        cache.release(compute(cache, ["a", "b"]))
        assert cache.acquire(["a", "b"], 2, 1) is None
        assert cache.acquire(["a", "x"], 1, 1) is not None

    def test_grow_fails_without_room(self) -> None:
        cache = PrefixCache(2)
        holding = compute(cache, ["a"])
        assert cache.grow(holding, 1)
        assert not cache.grow(holding, 1)
        assert (holding.blocks, cache.free) == (2, 0)


class TestEviction:
    def test_uses_blank_blocks_first(self) -> None:
        cache = PrefixCache(4)
        cache.release(compute(cache, ["a", "b"]))
        compute(cache, ["x", "y"])
        assert cache.match(["a", "b"]) == 2

    def test_evicts_the_least_recently_released_block(self) -> None:
        cache = PrefixCache(2)
        cache.release(compute(cache, ["old"]))
        cache.release(compute(cache, ["young"]))
        compute(cache, ["x"])
        assert (cache.match(["old"]), cache.match(["young"])) == (0, 1)

    def test_evicts_the_tail_of_a_request_before_its_head(self) -> None:
        cache = PrefixCache(3)
        cache.release(compute(cache, ["a", "b", "c"]))
        compute(cache, ["x"])
        assert cache.match(["a", "b", "c"]) == 2

    def test_keeps_a_block_that_was_used_again(self) -> None:
        cache = PrefixCache(2)
        first = compute(cache, ["a"])
        cache.release(first)
        cache.release(compute(cache, ["b"]))
        cache.release(compute(cache, ["a"]))
        compute(cache, ["x"])
        assert (cache.match(["a"]), cache.match(["b"])) == (1, 0)

    def test_never_evicts_held_blocks(self) -> None:
        cache = PrefixCache(2)
        compute(cache, ["a"])
        for other in ("x", "y", "z"):
            cache.release(compute(cache, [other]))
        assert cache.match(["a"]) == 1


@given(st.permutations(range(4)))
def test_order_of_releases_does_not_change_the_free_blocks(order: list[int]) -> None:
    cache = PrefixCache(16)
    holdings = [compute(cache, ["shared", *(f"{own}-{i}" for i in range(own))]) for own in range(4)]
    for position in order:
        cache.release(holdings[position])
    assert (cache.used, cache.findable) == (0, 7)


class CacheMachine(RuleBasedStateMachine):
    """Random operations on a small cache; each id contains the ids before it."""

    holdings: Bundle[tuple[Holding, str]] = Bundle("holdings")

    def __init__(self) -> None:
        super().__init__()
        self.cache = PrefixCache(6)
        self.live: list[Holding] = []

    @rule(target=holdings, path=st.text("ab", min_size=1, max_size=5), spare=st.integers(0, 2))
    def admit(self, path: str, spare: int) -> tuple[Holding, str]:
        ids = [path[: i + 1] for i in range(len(path))]
        hits, used = self.cache.match(ids), self.cache.used
        holding = self.cache.acquire(ids, hits, len(ids) - hits + spare)
        if holding is None:
            assert self.cache.used == used
            return Holding([], 0), ""
        for block in ids[hits:]:
            self.cache.name(holding, block)
        self.live.append(holding)
        assert self.cache.match(ids) == len(ids)
        return holding, path

    @rule(held=holdings, blocks=st.integers(0, 3))
    def grow(self, held: tuple[Holding, str], blocks: int) -> None:
        holding, path = held
        if path and holding in self.live:
            before = holding.blocks
            grown = self.cache.grow(holding, blocks)
            assert holding.blocks == before + (blocks if grown else 0)

    @rule(held=consumes(holdings), again=st.booleans())
    def release(self, held: tuple[Holding, str], again: bool) -> None:
        for _ in range(1 + again):
            self.cache.release(held[0])
        self.live = [holding for holding in self.live if holding is not held[0]]

    @rule()
    def clear(self) -> None:
        self.cache.clear()

    @invariant()
    def free_and_used_make_up_the_whole(self) -> None:
        assert self.cache.free + self.cache.used == self.cache.capacity
        assert 0 <= self.cache.free <= self.cache.capacity

    @invariant()
    def used_blocks_are_those_that_are_held(self) -> None:
        named = {block for holding in self.live for block in holding.named}
        anonymous = sum(holding.anonymous for holding in self.live)
        assert all(holding.anonymous >= 0 for holding in self.live)
        assert self.cache.used == len(named) + anonymous

    @invariant()
    def what_is_found_fits_in(self) -> None:
        anonymous = sum(holding.anonymous for holding in self.live)
        assert self.cache.findable + anonymous <= self.cache.capacity

    @invariant()
    def held_blocks_are_found(self) -> None:
        for holding in self.live:
            assert all(self.cache.match([block]) for block in holding.named)


TestAnySequenceOfOperations = CacheMachine.TestCase
