"""The state of a scheduler in the engine's metrics.

vLLM takes these numbers at the end of each step, before it reads the requests that arrived during
the step. So a request is not in them until the next step ends, although the engine already computes
its prompt then.
"""

from __future__ import annotations

from typing import NamedTuple


class SchedulerStats(NamedTuple):
    """The state at the end of the last step, and counters since the start."""

    running: int = 0
    """Requests in the batch."""

    waiting: int = 0
    """Requests that the step left in the queue."""

    kv_usage: float = 0.0
    """Share of the cache that running requests hold, 0 to 1."""

    running_adapters: frozenset[str] = frozenset()
    """Adapters of requests in the batch."""

    waiting_adapters: frozenset[str] = frozenset()
    """Their adapters."""

    queries: int = 0
    """Prompt tokens looked up in the cache."""

    hits: int = 0
    """Prompt tokens found in the cache."""

    host_hits: int = 0
    """Prompt tokens found in host memory."""

    preemptions: int = 0
    """Preemptions of running requests."""
