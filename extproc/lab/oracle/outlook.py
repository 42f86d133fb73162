"""The consequences of sending one request to one engine, computed from the true state."""

from __future__ import annotations

from typing import NamedTuple

from extproc.lab.engine.replica import Replica, SimRequest
from extproc.lab.oracle.course import Ahead, Course
from extproc.lab.oracle.futures import Futures, Shared
from extproc.lab.oracle.memory import Memory

_PLAYED = 64
"""Waiting requests that are played forward. The wait behind a longer queue is extrapolated."""

_SAMPLES = 64
"""Evicted blocks that are examined."""


class Outlook(NamedTuple):
    """The consequences for one engine. All times are in seconds."""

    wait: float
    """Time to first token."""

    prefill: float
    """Time that the engine computes the uncached part of the prompt."""

    attention: float
    """Time by which the response's context lengthens all of its steps together."""

    requests: int
    """Requests in the batch and in the queue, without the new one."""

    backlog: float
    """Time to compute the prompts there before it."""

    warmth: float
    """Share of the prompt that the engine has."""

    evicted: float
    """Time to compute the evicted blocks that later prompts begin with."""

    invested: float
    """Part of `prefill` for a beginning that many later requests share."""


def outlook(memory: Memory, request: SimRequest, start: float, now: float) -> Outlook:
    """Return the consequences. The engine's next step begins at `start`."""
    replica, profile = memory.replica, memory.replica.profile
    cached = memory.cached_tokens(request)
    uncached = request.prompt_tokens - cached
    loading = _loading(replica, request.adapter)
    queue = memory.waiting
    rate = profile.prefill_tokens_per_second
    context = request.prompt_tokens + request.output_tokens / 2
    return Outlook(
        wait=_wait(replica, queue, _ahead(request, uncached), start) - now + loading,
        prefill=profile.admission_seconds + uncached / rate + loading,
        attention=request.output_tokens * profile.seconds_per_context_token * context,
        requests=replica.running + replica.waiting,
        backlog=_unfinished(replica) / rate
        + sum(profile.admission_seconds + one.uncached / rate for one in queue),
        warmth=cached / request.prompt_tokens,
        evicted=0.0,
        invested=0.0,
    )


def with_futures(
    found: Outlook, memory: Memory, request: SimRequest, futures: Futures, shared: Shared
) -> Outlook:
    """Add what the later requests of the workload will miss and find."""
    profile = memory.replica.profile
    cached = round(found.warmth * request.prompt_tokens)
    invested = max(0, shared.tokens - cached) / profile.prefill_tokens_per_second
    return found._replace(
        evicted=_evicted(memory.replica, request, cached, futures),
        invested=min(invested, found.prefill),
    )


def _ahead(request: SimRequest, uncached: int) -> Ahead:
    return Ahead(request.prompt_tokens, uncached, request.output_tokens, request.adapter)


def _wait(replica: Replica, queue: list[Ahead], new: Ahead, start: float) -> float:
    """Return the time of the first token."""
    if len(queue) <= _PLAYED:
        return Course(replica, start).first_token([*queue, new])
    played = Course(replica, start).first_token(queue[:_PLAYED]) - start
    return start + played * (len(queue) + 1) / _PLAYED


def _unfinished(replica: Replica) -> int:
    """Return the tokens of running prompts that are not computed yet."""
    step = replica.planned
    return sum(one.known - one.computed for one, _ in step.parts) if step else 0


def _loading(replica: Replica, adapter: str) -> float:
    """Return the time to load an adapter into a slot."""
    if not adapter or adapter in replica.loras.in_slots:
        return 0.0
    profile = replica.profile
    if adapter in replica.loras.in_host_memory:
        return profile.lora_activate_seconds
    return profile.lora_activate_seconds + profile.lora_load_seconds


def _evicted(replica: Replica, request: SimRequest, cached: int, futures: Futures) -> float:
    """Return the time to compute again the evicted blocks that are needed later."""
    profile, cache = replica.profile, replica.cache
    fresh = -(-(request.prompt_tokens + request.output_tokens - cached) // profile.block_size)
    evicted = fresh - cache.blank
    if evicted <= 0:
        return 0.0
    stride = -(-evicted // _SAMPLES)
    blocks = cache.next_evicted(evicted, stride)
    sample = [isinstance(block, int) and futures.needed(block) for block in blocks]
    share = sum(sample) / max(1, len(sample))
    return evicted * share * profile.block_size / profile.prefill_tokens_per_second
