"""Retrieval-augmented generation with many chunks behind a short system prompt.

Published: access to documents is skewed (RAGCache, arXiv 2404.12457), and queries retrieve
overlapping evidence in different orders (CacheWeaver, arXiv 2606.19667). The lengths, the number of
topics and the skew are assumptions.
"""

from __future__ import annotations

from itertools import accumulate
from random import Random

from extproc.lab.workloads.lengths import log_normal
from extproc.lab.workloads.workload import Segment, Session, Turn, Workload

REQUESTS = 1_600
REQUESTS_PER_SECOND = 12.0
"""Rate at `pace` 1. Without hits, prefill takes two thirds of the time of eight H100s."""

SYSTEM_TOKENS = 400
TOPICS = 200
"""Subjects of questions, with Zipf's popularity: the n-th is asked for 1/n as often as the first.
"""

CHUNKS_OF_A_TOPIC = 24
LEAST_CHUNKS, MOST_CHUNKS = 8, 20
LEAST_CHUNK_TOKENS, MOST_CHUNK_TOKENS = 500, 1_000

_DISORDER = 0.8
"""Sigma of the noise on a chunk's rank. At this value two prompts on a topic agree in their first
chunk in two of three cases."""

_Topic = list[Segment]


def deep_rag(seed: int = 0, pace: float = 1.0) -> Workload:
    """Return 1,600 questions with 8 to 20 chunks each, at random times."""
    rng = Random(f"deep-rag/{seed}")
    topics = [_topic(rng, number) for number in range(TOPICS)]
    popularity = list(accumulate(1 / (rank + 1) for rank in range(TOPICS)))
    asked = rng.choices(topics, cum_weights=popularity, k=REQUESTS)
    return Workload(
        name="deep-rag",
        sessions=[Session((_turn(rng, number, topic),)) for number, topic in enumerate(asked)],
        requests_per_second=REQUESTS_PER_SECOND * pace,
        profile="h100-llama-3.1-8b",
    )


def _topic(rng: Random, number: int) -> _Topic:
    return [
        Segment(f"rag/{number}/{rank}", rng.randint(LEAST_CHUNK_TOKENS, MOST_CHUNK_TOKENS))
        for rank in range(CHUNKS_OF_A_TOPIC)
    ]


def _turn(rng: Random, number: int, topic: _Topic) -> Turn:
    noisy = sorted((rank + rng.gauss(0, _DISORDER), chunk) for rank, chunk in enumerate(topic))
    chunks = [chunk for _, chunk in noisy][: rng.randint(LEAST_CHUNKS, MOST_CHUNKS)]
    question = Segment(f"rag/question/{number}", log_normal(rng, 40, 0.6, least=8, most=300))
    answer = log_normal(rng, mean=250, sigma=0.6, least=20, most=1_000)
    prompt = (Segment("rag/system", SYSTEM_TOKENS, "system"), *chunks, question)
    return Turn(prompt, Segment(f"rag/question/{number}/answer", answer, "assistant"))
