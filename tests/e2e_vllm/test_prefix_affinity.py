"""Affinity shows where it is to show: in what the engines count of their own prefix caches."""

from __future__ import annotations

from dataclasses import replace

from extproc.lab.real_vllm.metrics import CacheUse
from extproc.lab.workloads.chat import Workload, drive
from tests.e2e.scene import MODEL
from tests.e2e_vllm.scene import Launch, Options, Tell, VllmScene

# A letter is a token here. The conversations end at some 900 tokens each: all of them
# are more than one engine's 16,384 tokens of cache hold, and less than two's.
CONVERSATIONS = Workload(
    users=24,
    turns=3,
    system_prompts=24,
    system_words=4,
    message_words=28,
    answer_tokens=12,
    ramp_seconds=1.0,
)

# Of two endpoints none can carry more than twice the mean: what is seen is affinity
# alone, and not how evenly the ring happens to share so few conversations.
UNBOUNDED = {"meanLoadFactor": 200}


async def cache_use_under(strategy: str, seed: int, scene: VllmScene) -> dict[str, CacheUse]:
    """What each engine looked for and found, by address, while the traffic ran."""
    await scene.use(Options(strategy=strategy, prefix_hash=UNBOUNDED))
    before = await scene.engines.cache_use()
    # Another seed says other things: nothing is shared with what ran before.
    run = await drive(scene.envoy.url, MODEL, replace(CONVERSATIONS, seed=seed))
    assert run.failed() == 0
    return {
        address: use - before[address] for address, use in (await scene.engines.cache_use()).items()
    }


async def test_prefix_hash_finds_more_cached_than_round_robin(launch: Launch, tell: Tell) -> None:
    scene = await launch()
    totals = {}
    for seed, strategy in enumerate(("RoundRobin", "PrefixHash")):
        used = await cache_use_under(strategy, seed, scene)
        totals[strategy] = sum(used.values(), CacheUse(0, 0))
        each = ", ".join(f"{use.rate:.0%} of {use.queries:,}" for use in used.values())
        tell(f"prompt tokens cached, {strategy}", f"{totals[strategy].rate:.1%} ({each})")
    # All of it the sidecar's doing: nothing went the way that Envoy takes without it.
    lines = await scene.access_log(2 * CONVERSATIONS.requests)
    assert {line["route"] for line in lines} == {"chosen"}
    ratio = totals["PrefixHash"].rate / totals["RoundRobin"].rate
    tell("PrefixHash / RoundRobin", f"{ratio:.2f}")
    assert ratio > 1.3
