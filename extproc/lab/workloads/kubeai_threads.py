"""KubeAI's closed-loop chat benchmark: 8,000 threads with a fixed concurrency."""

from __future__ import annotations

from random import Random

from extproc.lab.workloads.text import CHARACTERS_PER_TOKEN
from extproc.lab.workloads.threads import Threads
from extproc.lab.workloads.workload import Workload

CONCURRENCIES = (300, 600, 1_200)
"""Concurrent threads in the published runs."""

_LEAST_CHARACTERS, _MOST_CHARACTERS = 500, 3_000
"""Characters of the user's text in a thread. The benchmark leaves other threads out."""


def kubeai_threads(concurrency: int, seed: int = 0) -> Workload:
    """Return 8,000 ShareGPT threads; each user's next message follows the response at once.

    Threads, requests and tokens are those of the run with PrefixHash and 300 concurrent threads in
    KubeAI's benchmarks/multi-turn-chat-go, of 2025-02-25. The other runs differ by less than 0.2 %.
    Published are the totals, 5 to 30 messages a thread with 500 to 3,000 characters in total, and
    at most 40 tokens a response. Message lengths are drawn. Fitting the total moves a thread past
    these bounds by at most a few percent.
    """
    return Workload(
        name=f"kubeai-threads-{concurrency}",
        sessions=_THREADS.sessions(seed),
        concurrency=concurrency,
        profile="l4-llama-3.1-8b-bf16-kv",
    )


def _user_tokens(rng: Random) -> int:
    # The mean fits the published total.
    characters = rng.triangular(_LEAST_CHARACTERS, _MOST_CHARACTERS, _LEAST_CHARACTERS)
    return round(characters / CHARACTERS_PER_TOKEN)


_THREADS = Threads(
    name="kubeai-threads",
    threads=8_000,
    requests=59_031,
    prompt_tokens=22_793_327,
    output_tokens=2_294_703,
    max_tokens=40,
    least_messages=5,
    most_messages=30,
    user_tokens=_user_tokens,
)
