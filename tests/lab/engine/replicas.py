"""Builders of replicas and requests, and steps of a replica as events."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from extproc.lab.engine.replica import L4_LLAMA_3_1_8B_FP8, Replica, SimRequest

BLOCK = L4_LLAMA_3_1_8B_FP8.block_size

L4 = replace(
    L4_LLAMA_3_1_8B_FP8,
    step_base_seconds=0.041,
    seconds_per_context_token=0.5e-6,
    admission_seconds=0.010,
    prefill_tokens_per_second=4_300.0,
    kv_tokens=58_000,
)
"""A profile with round numbers, which do not change when the L4's are fitted again."""


class TokenEvent(NamedTuple):
    """One generated token."""

    request_id: int
    first: bool
    finished: bool
    cached_tokens: int
    """Prompt tokens found in the cache when the request was first admitted."""


def request(
    number: int,
    prompt: int,
    output: int,
    shared: int = 0,
    prefix: str = "shared",
    adapter: str = "",
) -> SimRequest:
    """Return a request that shares its first blocks with requests of the same prefix."""
    full = (prompt + output) // BLOCK
    blocks = [(prefix, adapter, i) if i < shared else (number, i) for i in range(full)]
    return SimRequest(number, prompt, output, blocks, adapter)


def small(blocks: int) -> Replica:
    """Return a replica with this number of blocks in its cache."""
    return Replica(replace(L4, kv_tokens=blocks * BLOCK))


def finish(replica: Replica, cached: dict[int, int] | None = None) -> list[TokenEvent]:
    """End a step and return its tokens as events.

    `cached` keeps the cached tokens of each request from its first token on.
    """
    tokens = replica.finish_step()
    known = {} if cached is None else cached
    known.update(tokens.first)
    return [
        TokenEvent(one, one in tokens.first, one in tokens.finished, known.get(one, 0))
        for one in tokens.request_ids
    ]


def step(replica: Replica) -> list[TokenEvent]:
    """Run one step and return its events."""
    assert replica.begin_step() is not None
    return finish(replica)


def drain(replica: Replica) -> list[TokenEvent]:
    """Run steps until the replica is idle, and return their events."""
    events: list[TokenEvent] = []
    for _ in range(100_000):
        if replica.begin_step() is None:
            return events
        events += finish(replica)
    raise AssertionError("the replica never becomes idle")
