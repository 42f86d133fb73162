from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from random import Random

import pytest
import xxhash
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from extproc.core.fleet.held_blocks import DEFAULT_BLOCKS, RUN_BLOCKS
from extproc.core.fleet.prefix_index import MOST_BLOCKS, PrefixIndex
from extproc.core.request.blocks import BLOCK_BYTES, BYTES_PER_TOKEN
from tests.core.clock import Clock
from tests.extent import extent

A, B, C = "10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000"
TOKENS = int(BLOCK_BYTES / BYTES_PER_TOKEN)  # size of a block's object


def prompt(*words: str) -> list[int]:
    """Return a block for each word; like a real block, it depends on all words before it."""
    texts = (" ".join(words[: end + 1]) for end in range(len(words)))
    return [xxhash.xxh64_intdigest(text.encode()) for text in texts]


ONE = prompt("a", "b", "c", "d")
OTHER = prompt("a", "b", "x", "y", "z")
APART = prompt("p", "q", "r")


def hashes(rng: Random, number: int) -> list[int]:
    return [rng.getrandbits(64) for _ in range(number)]


def room(index: PrefixIndex, address: str, blocks: int) -> None:
    index.resize(address, blocks * TOKENS)


def runs(index: PrefixIndex, address: str) -> int:
    return len(index._held[address]._runs)


def is_empty(index: PrefixIndex) -> bool:
    return not (index._holders or index._held or index._addresses)


class TestMatches:
    def test_are_empty_before_any_prompt(self) -> None:
        assert dict(PrefixIndex(Clock()).matches(ONE)) == {}

    def test_are_all_blocks_of_a_sent_prompt(self) -> None:
        index = PrefixIndex(Clock())
        index.sent(A, ONE)
        assert dict(index.matches(ONE)) == {A: 4}
        assert (len(index), index.size(A), index.size(B)) == (4, 4, 0)

    def test_are_the_common_beginning_of_another_prompt(self) -> None:
        index = PrefixIndex(Clock())
        index.sent(A, ONE)
        assert dict(index.matches(OTHER)) == {A: 2}
        assert dict(index.matches(APART)) == {}

    def test_are_separate_for_each_endpoint(self) -> None:
        index = PrefixIndex(Clock())
        index.sent(A, ONE)
        index.sent(B, OTHER)
        index.sent(C, ONE[:1])
        assert dict(index.matches(ONE)) == {A: 4, B: 2, C: 1}
        assert dict(index.matches(OTHER)) == {A: 2, B: 5, C: 1}

    def test_end_with_the_prompt(self) -> None:
        index = PrefixIndex(Clock())
        index.sent(A, OTHER)
        assert dict(index.matches(OTHER[:3])) == {A: 3}
        assert dict(index.matches([])) == {}

    def test_stay_the_same_after_the_same_prompt(self) -> None:
        index = PrefixIndex(Clock())
        for _ in range(5):
            index.sent(A, ONE)
        assert len(index) == 4

    def test_cover_more_endpoints_than_bits_in_a_machine_word(self) -> None:
        index = PrefixIndex(Clock())
        addresses = [f"10.0.0.{number}:8000" for number in range(200)]
        for number, address in enumerate(addresses):
            index.sent(address, ONE[: 1 + number % 4])
        assert index.matches(ONE) == {a: 1 + n % 4 for n, a in enumerate(addresses)}


class TestEviction:
    def test_evicts_the_least_recently_used_prompt_first(self) -> None:
        index = PrefixIndex(Clock())
        room(index, A, 7)
        for each in (ONE, APART, prompt("new")):
            index.sent(A, each)
        assert index.matches(ONE) == {A: 3}
        assert index.matches(APART) == {A: 3}
        assert index.matches(prompt("new")) == {A: 1}

    def test_evicts_the_end_of_a_prompt_before_its_beginning(self) -> None:
        index = PrefixIndex(Clock())
        room(index, A, 5)
        index.sent(A, OTHER)
        for number, left in enumerate([4, 3, 2, 1, 0]):
            index.sent(A, prompt(f"{number}"))
            assert index.matches(OTHER).get(A, 0) == left

    def test_spares_reused_prompts(self) -> None:
        index = PrefixIndex(Clock())
        room(index, A, 7)
        index.sent(A, ONE)
        index.sent(A, APART)
        index.sent(A, ONE)
        index.sent(A, prompt("new", "er"))
        assert index.matches(ONE) == {A: 4}
        assert index.matches(APART) == {A: 1}

    def test_spares_a_beginning_that_another_prompt_used(self) -> None:
        index = PrefixIndex(Clock())
        room(index, A, 7)
        index.sent(A, ONE)
        index.sent(A, APART)
        index.sent(A, ONE[:2])
        index.sent(A, prompt("n", "e", "w"))
        assert index.matches(ONE) == {A: 2}

    def test_evicts_the_ends_behind_a_common_beginning(self) -> None:
        index = PrefixIndex(Clock())
        room(index, A, 10)
        index.sent(A, prompt("s", *"abcdefg"))
        for number in range(20):
            index.sent(A, prompt("s", f"{number}", "end"))
        assert index.matches(prompt("s", *"abcdefg")) == {A: 1}
        for number in range(16, 20):
            assert index.matches(prompt("s", f"{number}", "end")) == {A: 3}

    def test_does_not_depend_on_lookups(self) -> None:
        index = PrefixIndex(Clock())
        room(index, A, 7)
        index.sent(A, ONE)
        index.sent(A, APART)
        for _ in range(9):
            index.matches(ONE)
        index.sent(A, prompt("new"))
        assert index.matches(ONE) == {A: 3}

    def test_is_separate_for_each_endpoint(self) -> None:
        index = PrefixIndex(Clock())
        room(index, A, 4)
        index.sent(A, ONE)
        index.sent(B, ONE)
        index.sent(A, APART)
        assert index.matches(ONE) == {A: 1, B: 4}


class TestRun:
    def test_extends_with_a_conversation(self) -> None:
        index = PrefixIndex(Clock())
        for end in range(1, 100):
            index.sent(A, range(end))
        assert (index.size(A), runs(index, A)) == (99, 1)

    def test_extends_again_after_its_end_was_evicted(self) -> None:
        index = PrefixIndex(Clock())
        room(index, A, 4)
        for each in (ONE, prompt("new"), ONE):
            index.sent(A, each)
        assert (index.matches(ONE), runs(index, A)) == ({A: 4}, 1)

    def test_splits_where_a_conversation_branches(self) -> None:
        index = PrefixIndex(Clock())
        for end in range(1, 5):
            index.sent(A, ONE[:end])
        index.sent(A, OTHER)
        assert (index.size(A), runs(index, A)) == (7, 2)
        assert (index.matches(ONE), index.matches(OTHER)) == ({A: 4}, {A: 5})

    def test_has_the_age_of_its_last_use(self) -> None:
        index = PrefixIndex(Clock())
        room(index, A, 7)
        for each in (ONE[:2], ONE, OTHER, ONE):
            index.sent(A, each)
        index.sent(A, prompt("n", "e", "w"))
        assert (index.matches(ONE), index.matches(OTHER)) == ({A: 4}, {A: 2})

    def test_is_evicted_before_the_run_that_it_continues(self) -> None:
        index = PrefixIndex(Clock())
        room(index, A, 7)
        for each in (ONE, OTHER, ONE):
            index.sent(A, each)
        for number, left in enumerate([4, 4, 4, 3, 2, 1, 0]):
            index.sent(A, prompt(f"{number}"))
            assert index.matches(ONE).get(A, 0) == left

    def test_counts_one_per_prompt_behind_a_common_beginning(self) -> None:
        index = PrefixIndex(Clock())
        for number in range(50):
            index.sent(A, prompt("s", "y", "s", f"{number}", "end"))
        assert (index.size(A), runs(index, A)) == (3 + 50 * 2, 50)

    def test_is_the_same_for_a_prompt_that_continues_another(self) -> None:
        index = PrefixIndex(Clock())
        first = index.sent(A, ONE)
        assert index.sent(A, [*ONE, *prompt("e", "f")]) == first
        assert index.sent(A, APART) != first

    def test_differs_for_a_prompt_that_branches_off(self) -> None:
        index = PrefixIndex(Clock())
        first = index.sent(A, ONE)
        second = index.sent(A, OTHER)
        assert first != second
        assert index.sent(A, [*ONE, *prompt("e")]) == first
        assert index.sent(A, [*OTHER, *prompt("e")]) == second

    def test_is_found_by_what_continues_it(self) -> None:
        index = PrefixIndex(Clock())
        assert index.run_ending(A, ONE, 4) == 0
        first, second = index.sent(A, ONE), index.sent(A, OTHER)
        longer = [*ONE, *prompt("e")]
        assert index.run_ending(A, longer, 4) == first
        assert index.run_ending(A, [*OTHER, *prompt("e")], 5) == second
        assert index.run_ending(B, longer, 4) == 0
        assert index.run_ending(A, longer, 5) == 0

    def test_is_not_found_by_a_prompt_that_branches_off(self) -> None:
        index = PrefixIndex(Clock())
        index.sent(A, ONE)
        assert index.run_ending(A, OTHER, 2) == 0

    def test_is_zero_for_a_prompt_without_blocks(self) -> None:
        assert PrefixIndex(Clock()).sent(A, []) == 0


class TestCapacity:
    def test_has_a_small_default(self) -> None:
        index = PrefixIndex(Clock())
        index.sent(A, range(10 * DEFAULT_BLOCKS))
        assert len(index) == DEFAULT_BLOCKS
        assert index.matches(range(10 * DEFAULT_BLOCKS)) == {A: DEFAULT_BLOCKS}

    @pytest.mark.parametrize("blocks", [1, 2, 3, 5, 100])
    def test_follows_the_tokens_of_the_cache(self, blocks: int) -> None:
        index = PrefixIndex(Clock())
        room(index, A, blocks)
        index.sent(A, OTHER)
        assert index.matches(OTHER) == {A: min(blocks, 5)}

    def test_keeps_the_beginning_of_a_longer_prompt(self) -> None:
        index = PrefixIndex(Clock())
        room(index, A, 3)
        index.sent(A, APART)
        index.sent(A, OTHER)
        assert index.matches(OTHER) == {A: 3}
        assert dict(index.matches(APART)) == {}

    def test_after_shrinking_keeps_the_most_recent_blocks(self) -> None:
        index = PrefixIndex(Clock())
        index.sent(A, ONE)
        index.sent(A, APART)
        room(index, A, 4)
        assert (index.matches(ONE), index.matches(APART)) == ({A: 1}, {A: 3})
        assert len(index) == 4

    def test_after_growing_keeps_all_and_accepts_more(self) -> None:
        index = PrefixIndex(Clock())
        room(index, A, 4)
        index.sent(A, ONE)
        room(index, A, 7)
        index.sent(A, APART)
        assert (index.matches(ONE), index.matches(APART)) == ({A: 4}, {A: 3})

    @pytest.mark.parametrize("tokens", [0, 1, TOKENS - 1])
    def test_of_zero_blocks_is_accepted(self, tokens: int) -> None:
        index = PrefixIndex(Clock())
        index.sent(A, ONE)
        index.resize(A, tokens)
        index.sent(A, OTHER)
        assert len(index) == 1

    def test_depends_on_the_bytes_of_a_token(self) -> None:
        index = PrefixIndex(Clock())
        index.sent(A, ONE)
        index.resize(A, 4 * TOKENS, bytes_per_token=BYTES_PER_TOKEN / 2)
        assert (index.matches(ONE), index.room(A)) == ({A: 2}, 4 * TOKENS)

    def test_stays_if_the_bytes_of_a_token_hardly_change(self) -> None:
        index = PrefixIndex(Clock())
        for _ in range(100):
            index.resize(A, 100 * TOKENS, bytes_per_token=BYTES_PER_TOKEN * 0.96)
        index.sent(A, range(200))
        assert index.size(A) == 100

    def test_counts_blocks_and_not_runs(self) -> None:
        index = PrefixIndex(Clock())
        room(index, A, 20)
        for number in range(100):
            index.sent(A, prompt(f"{number}"))
        assert (index.size(A), runs(index, A)) == (20, 20)

    def test_can_be_set_before_any_prompt(self) -> None:
        index = PrefixIndex(Clock())
        room(index, A, 2)
        assert len(index) == 0
        index.sent(A, ONE)
        assert len(index) == 2


class TestGrowth:
    def test_restores_what_was_evicted_last(self) -> None:
        index = PrefixIndex(Clock())
        room(index, A, 5)
        for sent in (APART, ONE, OTHER):
            index.sent(A, sent)
        assert (dict(index.matches(ONE)), dict(index.matches(APART))) == ({A: 2}, {})
        room(index, A, 8)
        assert (dict(index.matches(ONE)), dict(index.matches(OTHER))) == ({A: 4}, {A: 5})

    def test_lets_restored_blocks_be_evicted_first(self) -> None:
        index = PrefixIndex(Clock())
        room(index, A, 5)
        for sent in (ONE, OTHER):
            index.sent(A, sent)
        room(index, A, 8)
        index.sent(A, APART)
        assert (dict(index.matches(ONE)), dict(index.matches(OTHER))) == ({A: 2}, {A: 5})

    def test_restores_nothing_of_a_restarted_engine(self) -> None:
        index = PrefixIndex(Clock())
        room(index, A, 2)
        index.sent(A, ONE)
        index.forget(A)
        room(index, A, 8)
        assert dict(index.matches(ONE)) == {}


class TestUses:
    def test_are_unknown_while_there_is_room(self) -> None:
        index = PrefixIndex(Clock())
        assert index.uses(A) is None
        index.sent(A, ONE)
        assert index.uses(A) is None

    def test_are_blocks_sent_and_found_and_those_evicted_before(self) -> None:
        index = PrefixIndex(Clock())
        room(index, A, 5)
        for sent in (ONE, OTHER, ONE):
            index.sent(A, sent)
        uses = index.uses(A)
        assert uses is not None
        assert (uses.sent, uses.found, uses.evicted) == (13, 5, 2)


class TestAge:
    def test_is_unknown_while_there_is_room(self) -> None:
        index = PrefixIndex(Clock())
        assert index.age(A) is None
        room(index, A, 10)
        index.sent(A, prompt(*"abc"))
        assert index.age(A) is None

    def test_is_that_of_the_blocks_evicted_next(self) -> None:
        clock = Clock()
        index = PrefixIndex(clock)
        room(index, A, 4)
        for words in ("ab", "cd"):
            index.sent(A, prompt(*words))
            clock.now += 5
        assert index.age(A) == 10
        index.sent(A, prompt(*"ab"))
        assert index.age(A) == 5

    def test_stays_with_both_parts_of_a_split_run(self) -> None:
        clock = Clock()
        index = PrefixIndex(clock)
        room(index, A, 4)
        index.sent(A, prompt(*"abc"))
        clock.now += 5
        index.sent(A, prompt(*"ad"))
        assert index.age(A) == 5


class TestTotalLimit:
    def test_gives_each_endpoint_its_share(self) -> None:
        index = PrefixIndex(Clock(), 3 * (RUN_BLOCKS + 5))
        for address in (A, B, C):
            room(index, address, 1000)
            index.sent(address, range(1000))
        assert len(index) == 15
        assert index.matches(range(1000)) == {A: 5, B: 5, C: 5}

    def test_includes_the_overhead_of_runs(self) -> None:
        index = PrefixIndex(Clock(), 10 * (RUN_BLOCKS + 1))
        index.sent(A, range(1000))
        assert (index.size(A), runs(index, A)) == (9 * RUN_BLOCKS + 10, 1)
        for number in range(1000):
            index.sent(A, prompt(f"{number}"))
        assert (index.size(A), runs(index, A)) == (10, 10)

    def test_includes_the_overhead_of_a_split_run(self) -> None:
        index = PrefixIndex(Clock(), 2 * RUN_BLOCKS + 10)
        index.sent(A, range(1000))
        assert index.matches(range(1000)) == {A: RUN_BLOCKS + 10}
        index.sent(A, range(3))
        assert index.matches(range(1000)) == {A: 10}

    def test_shrinks_shares_for_a_new_endpoint(self) -> None:
        index = PrefixIndex(Clock(), 60)
        index.sent(A, range(100))
        assert index.matches(range(100)) == {A: 60 - RUN_BLOCKS}
        index.sent(B, [])
        assert index.matches(range(100)) == {A: 30 - RUN_BLOCKS}
        index.resize(C, 1000 * TOKENS)
        assert index.matches(range(100)) == {A: 20 - RUN_BLOCKS}

    def test_grows_shares_after_an_endpoint_left(self) -> None:
        index = PrefixIndex(Clock(), 60)
        index.sent(A, range(100))
        index.sent(B, range(100))
        index.forget(B)
        index.sent(A, range(100))
        assert index.matches(range(100)) == {A: 60 - RUN_BLOCKS}

    def test_accepts_more_endpoints_than_blocks(self) -> None:
        index = PrefixIndex(Clock(), 2)
        for address in (A, B, C):
            index.sent(address, ONE)
        assert len(index) == 0
        assert dict(index.matches(ONE)) == {}

    @pytest.mark.parametrize("added", [16, 64, 256])
    def test_allows_a_million_blocks_of_200_endpoints(self, added: int) -> None:
        index = PrefixIndex(Clock(), MOST_BLOCKS // 200)
        room(index, A, MOST_BLOCKS)
        for number in range(10_000 // added):
            index.sent(A, range(number * added, (number + 1) * added))
        assert index.size(A) >= 1_000_000 // 200

    @pytest.mark.parametrize(("common", "own"), [(0, 999), (0, 16), (0, 4), (0, 1), (1, 1)])
    def test_keeps_memory_within_the_sidecars_limit(self, common: int, own: int) -> None:
        most, rng = 20_000, Random(1)
        index, beginning = PrefixIndex(Clock(), most), hashes(rng, common)
        addresses = [f"10.0.0.{number}:8000" for number in range(10)]
        for address in addresses:
            room(index, address, most)
        tracemalloc.start()
        try:
            for number in range(2 * most // (own + RUN_BLOCKS)):
                index.sent(addresses[number % 10], beginning + hashes(rng, own))
            size, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        counted = sum(index.size(one) + RUN_BLOCKS * runs(index, one) for one in addresses)
        assert 0.95 * most < counted <= most
        assert size / most * MOST_BLOCKS < 300e6

    def test_shares_integers_of_single_holders(self) -> None:
        index = PrefixIndex(Clock())
        addresses = [f"10.0.0.{number}:8000" for number in range(200)]
        for address in addresses:
            index.sent(address, ONE)
            index.sent(address, APART)
        for address in addresses[:-1]:
            index.forget(address)
        assert len({id(mask) for mask in index._holders.values()}) == 1


class TestForget:
    def test_removes_all_blocks(self) -> None:
        index = PrefixIndex(Clock())
        index.sent(A, ONE)
        index.sent(B, ONE)
        index.forget(A)
        assert index.matches(ONE) == {B: 4}
        index.sent(A, ONE[:1])
        assert index.matches(ONE) == {A: 1, B: 4}

    def test_does_not_let_new_runs_have_old_numbers(self) -> None:
        index = PrefixIndex(Clock())
        before = index.sent(A, ONE)
        index.forget(A)
        assert index.sent(A, ONE) != before

    def test_removes_the_capacity(self) -> None:
        index = PrefixIndex(Clock())
        room(index, A, 2)
        index.forget(A)
        index.sent(A, ONE)
        assert index.matches(ONE) == {A: 4}

    def test_frees_all_memory(self) -> None:
        index = PrefixIndex(Clock())
        for address in (A, B):
            index.sent(address, ONE)
        index.sent(B, OTHER)
        index.forget(B)
        index.forget(A)
        assert len(index) == 0
        assert is_empty(index)

    def test_accepts_repeated_and_unknown_endpoints(self) -> None:
        index = PrefixIndex(Clock())
        index.forget(A)
        index.sent(A, ONE)
        index.forget(A)
        index.forget(A)
        assert is_empty(index)

    def test_frees_the_bit_for_the_next_endpoint(self) -> None:
        index = PrefixIndex(Clock())
        index.sent("always there", ONE)
        for number in range(1000):
            address = f"10.0.{number // 250}.{number % 250}:8000"
            index.sent(address, OTHER)
            assert max(index._addresses) <= 0b10
            index.forget(address)
        assert index.matches(OTHER) == {"always there": 2}

    def test_keeps_the_blocks_of_others(self) -> None:
        index = PrefixIndex(Clock())
        for address in (A, B, C):
            index.sent(address, ONE)
        index.forget(B)
        index.sent("10.0.0.4:8000", OTHER)
        assert index.matches(ONE) == {A: 4, C: 4, "10.0.0.4:8000": 2}


# Few words, so that prompts share beginnings.
prompts = st.lists(st.sampled_from("abc"), max_size=6).map(lambda words: prompt(*words))
addresses = st.sampled_from([A, B, C])
EVERY = [prompt(*words) for words in ("aaaaaa", "abcabc", "bcabca", "cabcab", "ccc", "abb")]


class PrefixIndexMachine(RuleBasedStateMachine):
    """Compare with a simple model: a list for each endpoint, least recently used first.

    The model does not define runs. If an endpoint uses its whole share, the index decides how many
    blocks remain: at least the necessary number, and the most recent ones. If a cache grows, the
    index decides how many evicted blocks return, as the least recently used ones.
    """

    MOST = 60

    def __init__(self) -> None:
        super().__init__()
        self.index = PrefixIndex(Clock(), self.MOST)
        self.lists: dict[str, list[int]] = {}
        self.rooms: dict[str, int] = {}
        self.evicted: dict[str, set[int]] = {}
        self.seen: list[Sequence[int]] = [*EVERY]

    def settle(self) -> None:
        for one, blocks in self.lists.items():
            left = self.index.size(one)
            if left != min(self.rooms.get(one, DEFAULT_BLOCKS), len(blocks)):
                assert left < len(blocks)
                assert self.taken(one) >= self.MOST // len(self.lists) - RUN_BLOCKS
            self.lists[one] = blocks[len(blocks) - left :]
            self.evicted.setdefault(one, set()).update(blocks[: len(blocks) - left])

    def taken(self, address: str) -> int:
        return self.index.size(address) + RUN_BLOCKS * runs(self.index, address)

    @rule(address=addresses, blocks=prompts)
    def send(self, address: str, blocks: list[int]) -> None:
        depth = self.index.matches(blocks).get(address, 0)
        continued = self.index.run_ending(address, blocks, depth)
        run = self.index.sent(address, blocks)
        assert not continued or run == continued
        kept = [one for one in self.lists.get(address, []) if one not in blocks]
        self.lists[address] = kept + blocks[::-1]
        self.settle()
        self.seen.append(blocks)

    @rule(address=addresses, blocks=st.integers(1, 12))
    def resize(self, address: str, blocks: int) -> None:
        self.index.resize(address, blocks * TOKENS)
        self.rooms[address] = blocks
        self.lists.setdefault(address, [])
        self.restore(address)
        self.settle()

    def restore(self, address: str) -> None:
        known, held = self.lists[address], self.index.runs(address)
        listed = [block for _, run in held for block in reversed(run)]
        if len(listed) > len(known):
            returned, self.lists[address] = listed[: len(listed) - len(known)], listed
            assert listed[len(returned) :] == known
            assert self.evicted[address].issuperset(returned)

    @precondition(lambda self: self.lists)
    @rule(address=addresses)
    def forget(self, address: str) -> None:
        self.index.forget(address)
        self.lists.pop(address, None)
        self.rooms.pop(address, None)
        self.evicted.pop(address, None)

    @invariant()
    def sent_prompts_match_the_lists(self) -> None:
        for blocks in self.seen:
            found = {address: self.depth(blocks, held) for address, held in self.lists.items()}
            assert self.index.matches(blocks) == {a: n for a, n in found.items() if n}

    def depth(self, blocks: Sequence[int], held: list[int]) -> int:
        return next((n for n, block in enumerate(blocks) if block not in held), len(blocks))

    @invariant()
    def only_listed_blocks_are_kept(self) -> None:
        assert len(self.index) == sum(map(len, self.lists.values()))
        for address, held in self.lists.items():
            assert len(held) <= self.rooms.get(address, DEFAULT_BLOCKS)
            assert self.taken(address) <= self.MOST // len(self.lists)
        assert {a: self.index.size(a) for a in self.lists} == {
            address: len(held) for address, held in self.lists.items()
        }
        assert self.index._holders.keys() == {b for held in self.lists.values() for b in held}
        assert set(self.index._addresses.values()) == self.lists.keys()

    def teardown(self) -> None:
        for address in (A, B, C):
            self.index.forget(address)
        assert is_empty(self.index)


TestPrefixIndex = PrefixIndexMachine.TestCase
TestPrefixIndex.settings = settings(max_examples=extent(15, 100))
