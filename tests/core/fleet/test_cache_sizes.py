from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from random import Random

import pytest

from extproc.core.fleet.cache_sizes import DEFAULT_TOKENS, CacheSizes
from extproc.core.fleet.prefix_index import PrefixIndex
from extproc.core.fleet.report import Load, Report
from extproc.core.request.blocks import BLOCK_TOKENS
from tests.core.clock import Clock

TOKENS = int(BLOCK_TOKENS)
REPORTED = 1_000
"""Blocks that fit, as the engines report."""


class LruEngine:
    """A stand-in that keeps the blocks used last, as vLLM does, and counts tokens."""

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self.has_counters = True
        self._cache: OrderedDict[int, None] = OrderedDict()
        self.prompts = 0
        self.cached = 0

    def serve(self, prompt: Sequence[int]) -> None:
        hits = next((at for at, one in enumerate(prompt) if one not in self._cache), len(prompt))
        self.prompts += TOKENS * len(prompt)
        self.cached += TOKENS * hits
        for block in reversed(prompt):
            self._cache[block] = None
            self._cache.move_to_end(block)
        while len(self._cache) > self.blocks:
            self._cache.popitem(last=False)

    def report(self, reported: int | None) -> Report:
        return Report(
            Load(0, 0.0),
            0,
            block_size=TOKENS,
            blocks=reported,
            prompt_tokens=self.prompts if self.has_counters else None,
            cached_tokens=self.cached if self.has_counters else None,
        )


class Scene:
    """Engines, the index of their blocks, and sessions that continue in any order."""

    def __init__(
        self, engine_blocks: int, number: int = 1, reported: int | None = REPORTED
    ) -> None:
        self._rng = Random(1)
        self._reported = reported
        self.engines = {f"10.0.0.{one}:8000": LruEngine(engine_blocks) for one in range(number)}
        self.index = PrefixIndex(Clock())
        self.sizes = CacheSizes()
        self.knows_prompts = True

    def serve(self, sessions: int, turns: int = 2_000, seen: bool = True) -> None:
        """Serve turns of that many sessions per engine, each with 20 to 100 blocks."""
        own = {address: self._sessions(sessions) for address in self.engines}
        for _ in range(turns):
            address = self._rng.choice(list(self.engines))
            prompt = self._rng.choice(own[address])
            self.engines[address].serve(prompt)
            if seen:
                self.index.sent(address, prompt)
            self.read(address)

    def read(self, address: str) -> None:
        report = self.engines[address].report(self._reported)
        uses = self.index.uses(address) if self.knows_prompts else None
        tokens = self.sizes.read(address, report, uses)
        self.index.resize(address, tokens)

    @property
    def blocks(self) -> set[int]:
        """The sizes that are believed."""
        return {int(self.index.room(address) / TOKENS) for address in self.engines}

    def _sessions(self, number: int) -> list[list[int]]:
        lengths = [self._rng.randint(20, 100) for _ in range(number)]
        return [[self._rng.getrandbits(64) for _ in range(length)] for length in lengths]


class TestSize:
    def test_is_the_reported_one_at_first(self) -> None:
        scene = Scene(REPORTED)
        scene.serve(sessions=1, turns=1)
        assert scene.blocks == {REPORTED}

    @pytest.mark.parametrize("sessions", [5, 15, 30, 100])
    def test_stays_if_the_engine_keeps_what_it_reports(self, sessions: int) -> None:
        scene = Scene(REPORTED)
        for _ in range(5):
            scene.serve(sessions)
            assert scene.blocks == {REPORTED}

    @pytest.mark.parametrize("times", [2, 4, 8])
    def test_grows_to_what_the_engine_finds_elsewhere(self, times: int) -> None:
        scene = Scene(times * REPORTED)
        scene.serve(sessions=20 * times, turns=20_000)
        assert scene.blocks == {times * REPORTED}

    def test_grows_no_further_than_sessions_need(self) -> None:
        scene = Scene(8 * REPORTED)
        scene.serve(sessions=30)
        assert scene.blocks == {2 * REPORTED}

    def test_is_learned_from_all_engines_that_report_the_same(self) -> None:
        one, many = Scene(4 * REPORTED), Scene(4 * REPORTED, number=16)
        one.serve(sessions=60, turns=30)
        many.serve(sessions=60, turns=16 * 30)
        for address in many.engines:
            many.read(address)
        assert one.blocks == {REPORTED}
        assert many.blocks == {2 * REPORTED}

    def test_is_learned_together_if_reports_differ_by_a_few_blocks(self) -> None:
        sizes, small = CacheSizes(), Scene(4 * REPORTED)
        small.sizes = sizes
        small.serve(sessions=80, turns=10_000)
        other = Scene(REPORTED, reported=REPORTED + 3)
        other.sizes = sizes
        other.read("10.0.0.0:8000")
        assert other.blocks == {4 * (REPORTED + 3)}

    def test_shrinks_to_the_reported_one_after_the_other_memory_is_gone(self) -> None:
        scene = Scene(4 * REPORTED)
        scene.serve(sessions=80, turns=10_000)
        assert scene.blocks == {4 * REPORTED}
        scene.engines["10.0.0.0:8000"].blocks = REPORTED
        scene.serve(sessions=80, turns=20_000)
        assert scene.blocks == {REPORTED}

    def test_starts_with_a_small_default_if_nothing_is_reported(self) -> None:
        default = DEFAULT_TOKENS // TOKENS
        small, large = Scene(default, reported=None), Scene(4 * default, reported=None)
        for scene in (small, large):
            scene.serve(sessions=80, turns=10_000)
        assert (small.blocks, large.blocks) == ({default}, {4 * default})

    def test_is_not_learned_while_others_send_requests(self) -> None:
        scene = Scene(4 * REPORTED)
        scene.knows_prompts = False
        scene.serve(sessions=80, turns=10_000)
        assert scene.blocks == {REPORTED}

    def test_ignores_what_was_counted_while_others_sent_requests(self) -> None:
        scene = Scene(REPORTED)
        scene.knows_prompts = False
        scene.serve(sessions=30, seen=False)
        scene.knows_prompts = True
        scene.serve(sessions=100)
        assert scene.blocks == {REPORTED}

    def test_is_not_learned_without_the_engines_counters(self) -> None:
        scene = Scene(4 * REPORTED)
        scene.engines["10.0.0.0:8000"].has_counters = False
        scene.serve(sessions=80)
        assert scene.blocks == {REPORTED}

    def test_ignores_counters_that_start_again(self) -> None:
        scene = Scene(REPORTED)
        scene.serve(sessions=100)
        engine = scene.engines["10.0.0.0:8000"]
        engine.prompts = engine.cached = 0
        scene.serve(sessions=100)
        assert scene.blocks == {REPORTED}

    def test_is_the_reported_one_if_the_engine_caches_nothing(self) -> None:
        scene = Scene(0)
        scene.serve(sessions=80)
        assert scene.blocks == {REPORTED}

    def test_outlives_the_endpoints_of_its_kind(self) -> None:
        scene = Scene(4 * REPORTED, number=2)
        scene.serve(sessions=80, turns=10_000)
        for address in scene.engines:
            scene.index.forget(address)
            scene.sizes.forget(address)
            scene.read(address)
        assert scene.blocks == {4 * REPORTED}
