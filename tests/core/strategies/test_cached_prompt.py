from __future__ import annotations

import pytest

from extproc.core.fleet.prefix_index import PrefixIndex
from extproc.core.request.blocks import Prompt
from extproc.core.strategies import Query
from extproc.core.strategies.cached_prompt import CachedPrompt
from tests.core.clock import Clock

A, B, C = "10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000"
BLOCKS = tuple(range(1, 11))


@pytest.fixture
def prefixes() -> PrefixIndex:
    """Return an index in which A has 4 of ten blocks, B has 8, and C has 2 others."""
    index = PrefixIndex(Clock())
    for address, blocks in ((A, BLOCKS[:4]), (B, BLOCKS[:8]), (C, (21, 22))):
        index.sent(address, blocks)
    return index


def look_up(prefixes: PrefixIndex, prompt: Prompt | None, *addresses: str) -> CachedPrompt:
    positions = {address: position for position, address in enumerate(addresses or (A, B, C))}
    return CachedPrompt.of(Query(prompt=prompt), positions, prefixes)


def test_has_the_blocks_of_each_endpoint_the_most_last(prefixes: PrefixIndex) -> None:
    found = look_up(prefixes, Prompt(BLOCKS, 2_560))
    assert list(found.depths.items()) == [(0, 4), (1, 8)]
    assert (found.deepest, found.prefix) == (8, BLOCKS[7])


def test_leaves_out_other_endpoints(prefixes: PrefixIndex) -> None:
    found = look_up(prefixes, Prompt(BLOCKS, 2_560), C, A)
    assert (found.depths, found.prefix) == ({1: 4}, BLOCKS[3])


def test_adds_up_several_prompts_which_have_no_common_prefix(prefixes: PrefixIndex) -> None:
    found = look_up(prefixes, Prompt(BLOCKS, 2_560, other_chains=((21, 22, 23), BLOCKS[:3])))
    assert (found.depths, found.deepest, found.prefix) == ({0: 7, 1: 11, 2: 2}, 11, None)


@pytest.mark.parametrize(
    ("addresses", "blocks"),
    [((A, B, C), 4), ((B,), 8), ((A,), 4), ((C,), 0)],
    ids=["ABC", "B", "A", "C"],
)
def test_is_tied_by_the_blocks_that_one_endpoint_has_more_than_any_other(
    addresses: tuple[str, ...], blocks: int, prefixes: PrefixIndex
) -> None:
    found = look_up(prefixes, Prompt(BLOCKS, 2_560), *addresses)
    assert found.tied_tokens == blocks * found.per_block


def test_is_tied_to_no_endpoint_if_two_have_as_much(prefixes: PrefixIndex) -> None:
    prefixes.sent(C, BLOCKS[:8])
    assert look_up(prefixes, Prompt(BLOCKS, 2_560)).tied_tokens == 0


def test_of_several_prompts_is_tied_to_no_endpoint(prefixes: PrefixIndex) -> None:
    asked = Prompt(BLOCKS, 2_560, other_chains=(BLOCKS[:3],))
    assert look_up(prefixes, asked).tied_tokens == 0


def test_without_a_prompt_has_nothing(prefixes: PrefixIndex) -> None:
    found = look_up(prefixes, None)
    assert (found.tokens, found.depths, found.deepest, found.prefix) == (0, {}, 0, None)


@pytest.mark.parametrize(("system_blocks", "is_limited"), [(7, True), (8, False)])
def test_only_the_compared_part_counts_if_there_is_a_history(
    system_blocks: int, is_limited: bool, prefixes: PrefixIndex
) -> None:
    long = Prompt(BLOCKS, 1_000_000, system_blocks)
    found = look_up(prefixes, long)
    compared = found.per_block * long.most_compared_blocks
    assert found.has_history == is_limited
    assert compared < found.tokens
    assert found.compared_tokens == (compared if is_limited else found.tokens)


@pytest.mark.parametrize(("previous", "repeated"), [(0, 8), (9, 9)])
def test_repeats_what_is_cached_or_was_the_previous_turn(
    previous: int, repeated: int, prefixes: PrefixIndex
) -> None:
    found = look_up(prefixes, Prompt(BLOCKS, 2_560, previous_blocks=previous))
    assert found.repeated_blocks == repeated
