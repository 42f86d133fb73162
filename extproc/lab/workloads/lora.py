"""The workloads of the published comparison of LoRA-aware strategies on A10s."""

from __future__ import annotations

from random import Random

from extproc.lab.workloads.lengths import log_normal
from extproc.lab.workloads.workload import Segment, Session, Turn, Workload

ADAPTERS = (0, 10, 4)
"""Number of adapters in the three tables; with none, requests use the base model."""

REQUESTS = 1_000
CONNECTIONS = 40
"""Published for the two tables with adapters, assumed for the other."""


def lora(adapters: int, seed: int = 0) -> Workload:
    """Return a closed loop: each connection sends its next request, to a random adapter.

    Published are the cluster (10 pods with Llama 2 on five nodes with an A10 each), connections and
    adapters. The rest is inferred.

    Responses have 370 tokens on average, because they took some 21 s at 17 to 18 tokens a second.
    Some are very short: otherwise the mean over requests of seconds per token could not rise to 0.4
    when a request waits 13 s. So their distribution is wide. That also makes request counts, which
    the baseline uses, worse than the cache usage. The names of that mean, of the token rate and of
    the requests per minute are LLMPerf's. Its "inter-token latency" includes the time to first
    token (here: mean_time_per_token_ms).

    Prompts resemble ShareGPT's, with 250 tokens on average, and each is different, because the
    publication does not say otherwise. 1,000 requests give a run of ten minutes and the published
    hundreds of preemptions. In the publication a fifth of the connections was idle on average
    (requests a minute times seconds of each). So its runs were shorter or ended with a few
    stragglers; 400 requests are closer to that. Four sidecars represent a gateway whose workers
    know little of each other and of the adapters' locations.
    """
    rng = Random(f"lora/{seed}")
    return Workload(
        name=f"lora-{adapters}",
        sessions=[Session((_turn(rng, number, adapters),)) for number in range(REQUESTS)],
        concurrency=CONNECTIONS,
        replicas=10,
        sidecars=4,
        profile="a10-llama-2-7b",
    )


def _turn(rng: Random, number: int, adapters: int) -> Turn:
    # Drawn in this order even if unused, so that the three workloads have the same lengths.
    prompt = log_normal(rng, mean=250, sigma=0.9, least=8, most=1_500)
    answer = log_normal(rng, mean=450, sigma=1.2, least=4, most=1_300)
    chosen = int(rng.random() * adapters)
    return Turn(
        prompt=(Segment(f"question/{number}", prompt),),
        output=Segment(f"question/{number}/answer", answer, "assistant"),
        adapter=f"adapter-{chosen}" if adapters else "",
    )
