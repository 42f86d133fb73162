"""An estimate of the load that a fleet can serve with good routing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from extproc.lab.engine.profile import Profile
from extproc.lab.tables.ceiling import ceiling
from extproc.lab.workloads.drawn import Shape
from extproc.lab.workloads.workload import Workload

_LEAST_BATCH, _MOST_BATCH = 4, 64
_SLOWDOWN = 3
"""Factor by which the contexts of a batch lengthen a step. A larger batch adds little throughput.
"""

_FILLED = 0.5
"""Share of the cache for running requests."""


class Capacity(NamedTuple):
    """A fleet's capacity for one workload."""

    requests_per_second: float
    contexts: float
    """Longest contexts that fit into all caches, apart from one copy of the prefix in each."""

    response_seconds: float
    """Mean time from the first token of a response to the last."""


class _Mean(NamedTuple):
    """Tokens of a mean request."""

    prompt: float
    uncached: float
    answer: float


def capacity(workload: Workload, shape: Shape, fleet: Sequence[Profile]) -> Capacity:
    """Estimate the capacity, with the hits of an unlimited cache.

    Real caches have fewer hits, and each engine must compute its own copy of a prefix, so the real
    capacity is lower.
    """
    requests = workload.requests
    prompt = workload.prompt_tokens / requests
    hits = ceiling(workload, fleet[0].block_size)
    mean = _Mean(prompt, (1 - hits) * prompt, workload.output_tokens / requests)
    own = max(1.0, mean.prompt + mean.answer - shape.prefix_tokens)
    longest = max(session.turns[-1].prompt_tokens for session in workload.sessions)
    each = [_engine(mean, own, engine) for engine in fleet]
    return Capacity(
        requests_per_second=sum(1 / seconds for seconds, _ in each),
        contexts=sum(
            (one.kv_tokens - shape.prefix_tokens) / max(1, longest - shape.prefix_tokens)
            for one in fleet
        ),
        response_seconds=sum(response for _, response in each) / len(each),
    )


def _engine(mean: _Mean, own: float, engine: Profile) -> tuple[float, float]:
    """Return an engine's seconds for a request, and the seconds from first token to last."""
    context = engine.seconds_per_context_token * (mean.prompt + mean.answer / 2)
    batch = min(_MOST_BATCH, (_SLOWDOWN - 1) * engine.step_base_seconds / context)
    batch = max(1.0, min(max(_LEAST_BATCH, batch), _FILLED * engine.kv_tokens / own))
    prefill = engine.admission_seconds + mean.uncached / engine.prefill_tokens_per_second
    decode = mean.answer * (engine.step_base_seconds / batch + context)
    return prefill + decode, batch * (prefill + decode)
