"""Checkpoints of what the caches of endpoints hold."""

from __future__ import annotations

import pytest

from extproc.core.fleet.report import Load, Report
from extproc.core.request.blocks import BLOCK_BYTES, BYTES_PER_TOKEN
from extproc.core.sharing.batch import packed
from extproc.core.sharing.checkpoint import Checkpoint, checkpoint_of, restore
from tests.core.sharing.sidecars import A, Sidecar, group, prompt, request

TOKENS = int(BLOCK_BYTES / BYTES_PER_TOKEN)  # size of a block's object

PROMPTS = [("x", "y", "z"), ("x", "y", "other"), ("apart",), ("x", "y", "z", "more")]


def is_read(sidecar: Sidecar, prompt_tokens: float | None = 1000, blocks: int = 100) -> None:
    """Read the endpoint's metrics."""
    report = Report(Load(0, 0), 0, block_size=TOKENS, blocks=blocks, prompt_tokens=prompt_tokens)
    sidecar.fleet.signals.record_scrape(A, report, 0)


def sends_all(sidecar: Sidecar) -> None:
    for words in PROMPTS:
        sidecar.clock.advance(1)
        sidecar.sends(A, request(*words)).release()


def of(sidecar: Sidecar) -> Checkpoint:
    found = checkpoint_of(sidecar.fleet.signals, A)
    assert found is not None
    return found


@pytest.fixture
def old() -> Sidecar:
    """A sidecar that has sent all prompts."""
    (old,) = group(1)
    is_read(old)
    sends_all(old)
    return old


@pytest.fixture
def new(old: Sidecar) -> Sidecar:
    """A sidecar that starts later, and has read the metrics."""
    new = Sidecar("new", old.clock)
    is_read(new)
    return new


def test_without_a_counter_of_prompt_tokens_first_tokens_show_a_restart(old: Sidecar) -> None:
    report = Report(Load(0, 0), 0, block_size=TOKENS, blocks=100, first_tokens=50.0)
    signals = old.fleet.signals
    signals.record_scrape(A, report, 0)
    checkpoint = of(old)
    for first_tokens, is_restored in ((50.0, True), (1.0, False)):
        new = Sidecar("new", old.clock)
        new.fleet.signals.record_scrape(A, report._replace(first_tokens=first_tokens), 0)
        restore(new.fleet.signals, A, checkpoint)
        assert bool(new.fleet.signals.prefixes.size(A)) == is_restored


class TestRestored:
    def test_index_has_the_same_matches(self, old: Sidecar, new: Sidecar) -> None:
        restore(new.fleet.signals, A, of(old))
        for words in PROMPTS:
            assert new.matches(*words) == old.matches(*words) == {A: len(words)}
        assert new.fleet.signals.prefixes.size(A) == old.fleet.signals.prefixes.size(A)

    def test_index_evicts_in_the_same_order(self, old: Sidecar, new: Sidecar) -> None:
        restore(new.fleet.signals, A, of(old))
        for room in range(6, 0, -1):
            for one in (old, new):
                one.fleet.signals.prefixes.resize(A, room * TOKENS)
            for words in PROMPTS:
                assert new.matches(*words) == old.matches(*words)

    def test_index_has_the_same_age(self, old: Sidecar, new: Sidecar) -> None:
        restore(new.fleet.signals, A, of(old))
        for one in (old, new):
            one.clock.advance(1)
            one.fleet.signals.prefixes.resize(A, 6 * TOKENS)
        ages = [one.fleet.signals.prefixes.age(A) for one in (old, new)]
        assert ages[0] == ages[1] is not None

    def test_index_is_no_larger_than_the_cache(self, old: Sidecar, new: Sidecar) -> None:
        is_read(new, blocks=2)
        restore(new.fleet.signals, A, of(old))
        assert new.fleet.signals.prefixes.size(A) == 2

    def test_index_can_be_checkpointed_again(self, old: Sidecar, new: Sidecar) -> None:
        restore(new.fleet.signals, A, of(old))
        assert of(new) == of(old)

    def test_index_takes_further_prompts(self, old: Sidecar, new: Sidecar) -> None:
        restore(new.fleet.signals, A, of(old))
        new.sends(A, request("x", "y", "z", "more", "still"))
        assert new.matches("x", "y", "z", "more", "still") == {A: 5}


class TestNotRestored:
    def test_after_a_restart_of_the_engine(self, old: Sidecar, new: Sidecar) -> None:
        is_read(old, prompt_tokens=5000)
        checkpoint = of(old)
        is_read(new, prompt_tokens=4999)
        restore(new.fleet.signals, A, checkpoint)
        assert new.fleet.signals.prefixes.size(A) == 0

    def test_before_the_engine_is_read(self, old: Sidecar) -> None:
        new = Sidecar("new", old.clock)
        restore(new.fleet.signals, A, of(old))
        assert new.fleet.signals.prefixes.size(A) == 0

    def test_over_what_the_sidecar_knows(self, old: Sidecar, new: Sidecar) -> None:
        new.sends(A, request("own"))
        restore(new.fleet.signals, A, of(old))
        assert new.matches("own") == {A: 1}
        assert new.matches("x") == {}

    def test_for_an_engine_that_counts_less_than_infinity(self, new: Sidecar) -> None:
        checkpoint = Checkpoint(float("inf"), [(0.0, packed(prompt("x")))])
        restore(new.fleet.signals, A, checkpoint)
        assert new.fleet.signals.prefixes.size(A) == 0

    def test_if_a_run_is_empty_or_repeated(self, new: Sidecar) -> None:
        runs = [(1.0, b""), (1.0, packed(prompt("x"))), (0.5, packed(prompt("x")))]
        restore(new.fleet.signals, A, Checkpoint(0.0, runs))
        assert new.fleet.signals.prefixes.size(A) == 1
        assert new.matches("x") == {A: 1}


class TestCheckpoint:
    def test_is_none_for_an_empty_cache(self, new: Sidecar) -> None:
        assert checkpoint_of(new.fleet.signals, A) is None

    def test_is_none_before_the_first_reading(self) -> None:
        (sidecar,) = group(1)
        sidecar.sends(A, request("x"))
        assert checkpoint_of(sidecar.fleet.signals, A) is None

    def test_has_zero_tokens_for_an_engine_without_counters(self, old: Sidecar) -> None:
        (sidecar,) = group(1)
        is_read(sidecar, prompt_tokens=None)
        sends_all(sidecar)
        assert of(sidecar).prompt_tokens == 0

    def test_has_eight_bytes_for_each_block(self, old: Sidecar) -> None:
        blocks = old.fleet.signals.prefixes.size(A)
        assert sum(len(run) for _, run in of(old).runs) == 8 * blocks

    def test_has_no_text(self, old: Sidecar) -> None:
        assert not any(word.encode() in run for _, run in of(old).runs for word in PROMPTS[0][1:])
