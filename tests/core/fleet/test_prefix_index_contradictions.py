"""The prefix index with chains that contradict each other.

A block depends on all blocks before it, so true chains agree before each common block. Other
sidecars' batches may have any blocks.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from extproc.core.fleet.prefix_index import PrefixIndex
from extproc.core.request.blocks import BLOCK_BYTES, BYTES_PER_TOKEN
from tests.core.clock import Clock
from tests.extent import extent

A, B, C = ADDRESSES = ("10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000")
TOKENS = int(BLOCK_BYTES / BYTES_PER_TOKEN)  # size of a block's object

chains = st.lists(st.integers(0, 7), max_size=8)
addresses = st.sampled_from(ADDRESSES)


def test_a_chain_with_a_known_block_behind_a_new_one_is_accepted() -> None:
    index = PrefixIndex(Clock())
    index.sent(A, [1, 2])
    index.sent(B, [3, 2])
    assert dict(index.matches([3])) == {B: 1}
    assert dict(index.matches([1])) == {A: 1}


def test_a_chain_that_repeats_a_block_is_accepted() -> None:
    index = PrefixIndex(Clock())
    index.sent(A, [1, 1, 1])
    index.sent(A, [1, 2, 1, 3])
    assert dict(index.matches([1])) == {A: 1}


def test_an_endpoint_that_was_forgotten_is_never_found() -> None:
    index = PrefixIndex(Clock())
    index.sent(A, [1, 2])
    index.sent(B, [3, 2, 1])
    index.sent(A, [1, 3, 2])
    index.forget(A)
    assert index.matches([1, 2]).keys() <= {B}
    assert index.matches([3, 2]).keys() <= {B}


class Contradictions(RuleBasedStateMachine):
    """Any chains on a few endpoints of few blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.index = PrefixIndex(self.clock, most_blocks=100)

    @rule(address=addresses, blocks=chains)
    def send(self, address: str, blocks: list[int]) -> None:
        self.clock.advance(1)
        self.index.sent(address, blocks)

    @rule(address=addresses, blocks=st.integers(0, 20))
    def resize(self, address: str, blocks: int) -> None:
        self.index.resize(address, blocks * TOKENS)

    @rule(address=addresses)
    def forget(self, address: str) -> None:
        self.index.forget(address)

    @rule(address=addresses, runs=st.lists(chains, max_size=5))
    def restore(self, address: str, runs: list[list[int]]) -> None:
        self.index.restore(address, [(10.0 - place, run) for place, run in enumerate(runs)])

    @rule(source=addresses, address=addresses)
    def restore_from_another(self, source: str, address: str) -> None:
        self.index.restore(address, self.index.runs(source))

    @rule(blocks=chains)
    def match(self, blocks: list[int]) -> None:
        found = self.index.matches(blocks)
        assert found.keys() <= self.index._held.keys()
        assert all(0 < depth <= len(blocks) for depth in found.values())

    @invariant()
    def sizes_are_those_of_the_runs(self) -> None:
        for address, held in self.index._held.items():
            assert held.size == sum(map(len, held.all()))
            assert held.size <= held.capacity
            runs = self.index.runs(address)
            assert all(age >= 0 for age, _ in runs)
            assert sum(len(run) for _, run in runs) == self.index.size(address)
            self.index.age(address)
        assert len(self.index) == sum(map(self.index.size, ADDRESSES))

    @invariant()
    def holders_are_endpoints_that_have_the_block(self) -> None:
        by_bit = {held.bit: held for held in self.index._held.values()}
        for block, mask in self.index._holders.items():
            assert mask
            assert mask & ~sum(by_bit) == 0
            for bit, held in by_bit.items():
                if mask & bit:
                    assert any(block in run for run in held.all())

    def teardown(self) -> None:
        for address in ADDRESSES:
            self.index.forget(address)
        assert self.index._holders == {}
        assert self.index._held == {}
        assert self.index._addresses == {}


TestContradictions = Contradictions.TestCase
TestContradictions.settings = settings(max_examples=extent(30, 500), stateful_step_count=50)
