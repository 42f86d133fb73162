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
    and adapters. The rest is inferred: answers have 385 tokens on average, because
    they took some 21 s at 0.05 s a token (17 to 18 tokens a second); prompts are taken to be like
    ShareGPT's, 250 tokens on average; that every prompt is different, because nothing says that
    they are not; and 1,000 requests make a run of some ten minutes.
    """
    rng = Random(f"lora/{seed}")
    return Workload(
        name=f"lora-{adapters}",
        sessions=[Session((_turn(rng, number, adapters),)) for number in range(REQUESTS)],
        concurrency=CONNECTIONS,
        replicas=10,
        profile="a10-llama-2-7b",
    )


def _turn(rng: Random, number: int, adapters: int) -> Turn:
    # Drawn in this order and even if unused, so that the three workloads have the same lengths.
    prompt = log_normal(rng, mean=250, sigma=0.9, least=8, most=1_500)
    answer = log_normal(rng, mean=385, sigma=0.5, least=16, most=1_500)
    chosen = int(rng.random() * adapters)
    return Turn(
        prompt=(Segment(f"question/{number}", prompt),),
        output=Segment(f"question/{number}/answer", answer, "assistant"),
        adapter=f"adapter-{chosen}" if adapters else "",
    )
