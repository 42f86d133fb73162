"""The two scenarios of KubeAI's post on prefix-aware load balancing, with short responses."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from extproc.lab.workloads.lengths import log_normal
from extproc.lab.workloads.threads import Threads
from extproc.lab.workloads.workload import Workload


def blog_2xl4(seed: int = 0) -> Workload:
    """Return the workload of two L4s with Llama 3.1 8B and little memory for the cache.

    Published: 712 ms per token with LeastLoad, 469 ms with PrefixHash.
    """
    return _blog("blog-2xL4", _L4, 80, 2, "l4-llama-3.1-8b-fp8-small", seed)


def blog_8xh100(seed: int = 0) -> Workload:
    """Return the workload of eight H100s with Llama 3.1 70B.

    Published: 405 ms per token with LeastLoad, 361 ms with PrefixHash.
    """
    return _blog("blog-8xH100", _H100, 320, 8, "h100-llama-3.1-70b", seed)


def _blog(
    name: str, threads: Threads, users: int, replicas: int, profile: str, seed: int
) -> Workload:
    """Return 1,000 threads, each taken by the next free virtual user, twice in a row.

    The first pass is the warm-up: the benchmark ran twice, "to ensure both cases start with a
    preloaded cache". At temperature 0 both passes are equal, including the responses.
    """
    sessions = threads.sessions(seed)
    return Workload(
        name=name,
        sessions=[*sessions, *sessions],
        concurrency=users,
        replicas=replicas,
        profile=profile,
        warm_up=len(sessions),
    )


def _user_tokens(rng: Random) -> int:
    # At least 2,500 characters, and no more than fits into the data set's 2,048 tokens together
    # with the omitted responses. The mean fits the published total.
    return 625 + log_normal(rng, mean=440, sigma=1.0, most=1_200)


_L4 = Threads(
    name="blog",
    threads=1_000,
    requests=7_341,
    prompt_tokens=4_990_223,
    output_tokens=68_062,
    max_tokens=10,
    least_messages=5,
    most_messages=40,
    user_tokens=_user_tokens,
)
"""ShareGPT threads of at least 5 user messages and 2,500 characters.

From KubeAI's benchmarks/chat, the run with LeastLoad. Message lengths are drawn.
"""

_H100 = replace(_L4, prompt_tokens=4_990_249, output_tokens=67_790)
"""The same threads; the larger model's responses are a little shorter."""
