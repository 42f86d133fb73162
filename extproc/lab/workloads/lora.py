"""The workloads behind the published comparison of LoRA-aware strategies on A10s."""

from __future__ import annotations

from random import Random

from extproc.lab.workloads.lengths import log_normal
from extproc.lab.workloads.workload import Segment, Session, Turn, Workload

ADAPTERS = (0, 10, 4)
"""In the three tables; none: only the base model is asked."""

REQUESTS = 1_000
CONNECTIONS = 40
"""Published for the two tables with adapters, assumed for the other."""


def lora(adapters: int, seed: int = 0) -> Workload:
    """Each connection sends its next request, to an adapter drawn at random, when it has an answer.

    Published are the cluster (10 pods with Llama 2 on five nodes with an A10 each), connections
    and adapters. The rest is inferred.

    Answers have 370 tokens on average, because they took some 21 s at 17 to 18 tokens a second,
    and some are very short: only so can the mean over requests of seconds per token rise to 0.4
    where a request waits 13 s. Hence the width of their distribution, which is also what makes
    counting requests, as the baseline does, worse than looking at the cache. That mean, the rate
    of tokens of each request and the requests per minute are LLMPerf's by their names, and
    its "inter-token latency" has the time to first token in it (here: mean_time_per_token_ms).

    Prompts are taken to be like ShareGPT's, 250 tokens on average, and every one to be
    different, because nothing says that they are not. 1,000 requests make a run of ten minutes
    and the published hundreds of preemptions. In the publication a fifth of the connections was
    idle on average (requests a minute times seconds of each), so its runs were
    shorter or ended with a few stragglers; 400 requests come nearer to that. Four sidecars stand
    for a gateway whose workers know little of each other, and of where adapters were sent.
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
    # Drawn in this order and even if unused, so that the three workloads have the same lengths.
    prompt = log_normal(rng, mean=250, sigma=0.9, least=8, most=1_500)
    answer = log_normal(rng, mean=450, sigma=1.2, least=4, most=1_300)
    chosen = int(rng.random() * adapters)
    return Turn(
        prompt=(Segment(f"question/{number}", prompt),),
        output=Segment(f"question/{number}/answer", answer, "assistant"),
        adapter=f"adapter-{chosen}" if adapters else "",
    )
