from __future__ import annotations

from dataclasses import replace

import pytest

from extproc.lab.engine.host_cache import HostCache
from extproc.lab.engine.replica import L4_LLAMA_3_1_8B_FP8, Replica, SimRequest

SMALL = replace(
    L4_LLAMA_3_1_8B_FP8,
    kv_tokens=64 * 16,
    host_kv_tokens=640 * 16,
    step_base_seconds=0.01,
    seconds_per_context_token=0.0,
    admission_seconds=0.0,
    prefill_tokens_per_second=1_000.0,
    host_tokens_per_second=10_000.0,
)


def host(*blocks: int, capacity: int = 4) -> HostCache:
    cache = HostCache(capacity)
    for block in blocks:
        cache.store(block)
    return cache


class TestHostCache:
    def test_has_the_beginning_of_a_prompt_up_to_the_first_missing_block(self) -> None:
        assert host(1, 2, 4).match([1, 2, 3, 4]) == 2

    def test_drops_the_blocks_that_were_used_least_recently(self) -> None:
        assert [block in host(1, 2, 3, 1, 4, 5) for block in (1, 2, 3)] == [True, False, True]

    def test_drops_the_end_of_a_used_prompt_before_its_beginning(self) -> None:
        cache = host(1, 2, 3, 9)
        cache.touch([1, 2, 3])
        cache.touch([9])
        cache.store(10)
        assert cache.match([1, 2, 3]) == 2

    def test_stores_nothing_without_capacity(self) -> None:
        assert 1 not in host(1, capacity=0)


class TestReplica:
    def serve(self, replica: Replica, number: int, name: str) -> float:
        """Serve a prompt of 50 blocks and one token, and return its seconds."""
        blocks = [(name, at) for at in range(50)]
        replica.submit(SimRequest(number, 50 * 16 + 7, 1, blocks))
        seconds = replica.begin_step()
        replica.finish_step()
        assert seconds is not None
        return seconds

    def test_loads_what_the_gpu_has_evicted_instead_of_computing_it(self) -> None:
        replica = Replica(SMALL)
        assert self.serve(replica, 1, "a") == pytest.approx(0.01 + 807 / 1_000)
        self.serve(replica, 2, "b")  # leaves 13 blocks of the first
        assert self.serve(replica, 3, "a") == pytest.approx(0.01 + 7 / 1_000 + 37 * 16 / 10_000)
        assert (replica.prefix_cache_hits, replica.host_cache_hits) == (13 * 16, 37 * 16)

    def test_computes_all_after_a_reset(self) -> None:
        replica = Replica(SMALL)
        self.serve(replica, 1, "a")
        replica.reset()
        assert self.serve(replica, 2, "a") == pytest.approx(0.01 + 807 / 1_000)
