from __future__ import annotations

import pytest

from extproc.core.fleet.signals import Signals
from extproc.core.request.blocks import Prompt
from extproc.core.strategies import Query
from extproc.core.strategies.cached_prompt import CachedPrompt
from tests.core.clock import Clock

A, B, C = "10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000"
BLOCKS = tuple(range(1, 11))


@pytest.fixture
def signals() -> Signals:
    """Return signals by which A has 4 of ten blocks, B has 8, and C has 2 others."""
    known = Signals(Clock())
    for address, blocks in ((A, BLOCKS[:4]), (B, BLOCKS[:8]), (C, (21, 22))):
        known.prefixes.sent(address, blocks)
    return known


def look_up(signals: Signals, prompt: Prompt | None, *addresses: str) -> CachedPrompt:
    positions = {address: position for position, address in enumerate(addresses or (A, B, C))}
    return CachedPrompt.of(Query(prompt=prompt), positions, signals)


def test_has_the_blocks_of_each_endpoint_the_most_last(signals: Signals) -> None:
    found = look_up(signals, Prompt(BLOCKS, 2_560))
    assert list(found.depths.items()) == [(0, 4), (1, 8)]
    assert (found.deepest, found.prefix) == (8, BLOCKS[7])


def test_leaves_out_other_endpoints(signals: Signals) -> None:
    found = look_up(signals, Prompt(BLOCKS, 2_560), C, A)
    assert (found.depths, found.prefix) == ({1: 4}, BLOCKS[3])


def test_adds_up_several_prompts_which_have_no_common_prefix(signals: Signals) -> None:
    found = look_up(signals, Prompt(BLOCKS, 2_560, other_chains=((21, 22, 23), BLOCKS[:3])))
    assert (found.depths, found.deepest, found.prefix) == ({0: 7, 1: 11, 2: 2}, 11, None)


@pytest.mark.parametrize(
    ("addresses", "blocks"),
    [((A, B, C), 4), ((B,), 8), ((A,), 4), ((C,), 0)],
    ids=["ABC", "B", "A", "C"],
)
def test_is_tied_by_the_blocks_that_one_endpoint_has_more_than_any_other(
    addresses: tuple[str, ...], blocks: int, signals: Signals
) -> None:
    found = look_up(signals, Prompt(BLOCKS, 2_560), *addresses)
    assert found.tied_tokens == blocks * found.per_block


def test_is_tied_to_no_endpoint_if_two_have_as_much(signals: Signals) -> None:
    signals.prefixes.sent(C, BLOCKS[:8])
    assert look_up(signals, Prompt(BLOCKS, 2_560)).tied_tokens == 0


def test_of_several_prompts_is_tied_to_no_endpoint(signals: Signals) -> None:
    asked = Prompt(BLOCKS, 2_560, other_chains=(BLOCKS[:3],))
    assert look_up(signals, asked).tied_tokens == 0


def test_without_a_prompt_has_nothing(signals: Signals) -> None:
    found = look_up(signals, None)
    assert (found.tokens, found.depths, found.deepest, found.prefix) == (0, {}, 0, None)


@pytest.mark.parametrize(("system_blocks", "is_limited"), [(7, True), (8, False)])
def test_only_the_compared_part_counts_if_there_is_a_history(
    system_blocks: int, is_limited: bool, signals: Signals
) -> None:
    long = Prompt(BLOCKS, 1_000_000, system_blocks)
    found = look_up(signals, long)
    compared = found.per_block * long.most_compared_blocks
    assert found.has_history == is_limited
    assert compared < found.tokens
    assert found.compared_tokens == (compared if is_limited else found.tokens)


@pytest.mark.parametrize(("previous", "repeated"), [(0, 8), (9, 9)])
def test_repeats_what_is_cached_or_was_the_previous_turn(
    previous: int, repeated: int, signals: Signals
) -> None:
    found = look_up(signals, Prompt(BLOCKS, 2_560, previous_blocks=previous))
    assert found.repeated_blocks == repeated


class TestPreviousTurn:
    """The endpoint that had the previous turn has the response to it in its cache."""

    ASKED = Prompt(BLOCKS, 2_560, previous_blocks=4, answered_bytes=2_400, previous_turn=7)

    @pytest.mark.parametrize(
        ("address", "cached"),
        [(A, {0: 600, 1: 512}), (C, {0: 256, 1: 512, 2: 600})],
        ids=["with fewer blocks", "without blocks"],
    )
    def test_counts_with_its_response(
        self, address: str, cached: dict[int, float], signals: Signals
    ) -> None:
        signals.turns.sent(address, 7, 0)
        found = look_up(signals, self.ASKED)
        assert found.cached() == cached
        assert (found.deepest, found.prefix) == (8, BLOCKS[7])

    @pytest.mark.parametrize(("size", "counts"), [(512 + 256, False), (512 + 257, True)])
    def test_counts_only_if_the_response_is_more_than_what_its_blocks_show(
        self, size: int, counts: bool, signals: Signals
    ) -> None:
        signals.turns.sent(B, 7, 0)
        found = look_up(signals, self.ASKED._replace(bytes=9_000, answered_bytes=4 * size))
        assert found.cached() == {0: 256, 1: size if counts else 512}

    def test_is_unknown_if_it_was_another_or_its_endpoint_is_not_asked_for(
        self, signals: Signals
    ) -> None:
        signals.turns.sent(A, 8, 0)
        signals.turns.sent(B, 7, 0)
        assert look_up(signals, self.ASKED, A, C).previous is None
        assert look_up(signals, self.ASKED._replace(previous_turn=None)).previous is None

    def test_is_at_most_the_whole_prompt(self, signals: Signals) -> None:
        """A long prompt's size is limited."""
        signals.turns.sent(A, 7, 0)
        assert look_up(signals, self.ASKED._replace(answered_bytes=9_000)).cached()[0] == 640
