"""Prefix affinity raises the hit rate that the engines report."""

from __future__ import annotations

from dataclasses import replace

from extproc.lab.demo.chat import Workload, drive
from extproc.lab.real_vllm.metrics import CacheUse
from tests.e2e.scene import MODEL
from tests.e2e_vllm.scene import Launch, Options, RecordFigure, VllmScene

# A letter is a token here, and each conversation ends with about 900 tokens. Together they exceed
# the cache of one engine (16,384 tokens), but not the caches of two.
CONVERSATIONS = Workload(
    users=24,
    turns=3,
    system_prompts=24,
    system_words=4,
    message_words=28,
    answer_tokens=12,
    ramp_seconds=1.0,
)

# No endpoint of two can have more than twice the mean load. This bound never applies, so the result
# depends on affinity alone, not on how the ring distributes so few conversations.
UNBOUNDED = {"meanLoadFactor": 200}


async def cache_use_under(strategy: str, seed: int, scene: VllmScene) -> dict[str, CacheUse]:
    """Return the cache use of each engine during the traffic, by address."""
    await scene.use(Options(strategy=strategy, prefix_hash=UNBOUNDED))
    before = await scene.engines.cache_use()
    # Another seed gives other texts, so nothing is shared with earlier traffic.
    run = await drive([scene.envoy.url], MODEL, replace(CONVERSATIONS, seed=seed))
    assert run.failed() == 0
    return {
        address: use - before[address] for address, use in (await scene.engines.cache_use()).items()
    }


async def test_prefix_hash_finds_more_cached_than_round_robin(
    launch: Launch, record_figure: RecordFigure
) -> None:
    scene = await launch()
    totals = {}
    for seed, strategy in enumerate(("RoundRobin", "PrefixHash")):
        used = await cache_use_under(strategy, seed, scene)
        totals[strategy] = sum(used.values(), CacheUse(0, 0))
        each = ", ".join(f"{use.rate:.0%} of {use.queries:,}" for use in used.values())
        record_figure(f"prompt tokens cached, {strategy}", f"{totals[strategy].rate:.1%} ({each})")
    # The sidecar routed all requests: Envoy's fallback cluster got none.
    lines = await scene.access_log(2 * CONVERSATIONS.requests)
    assert {line["route"] for line in lines} == {"chosen"}
    ratio = totals["PrefixHash"].rate / totals["RoundRobin"].rate
    record_figure("PrefixHash / RoundRobin", f"{ratio:.2f}")
    assert ratio > 1.3
