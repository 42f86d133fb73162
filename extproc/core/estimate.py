"""How loaded endpoints are now, judged by what they last said and what was sent since.

A reading is up to a second old, and every sidecar that believes it sends the same
way: the endpoint that looks best is flooded before it can say so (a new pod, all
zeros, most of all). So requests are added to what an endpoint said, the largest of

    what we have in flight there more than when it said so;
    what we have in flight there more than it knew of, which is what gives away an
        engine that hangs: its metrics still answer, and say that nothing runs;
    for a new endpoint, what we have in flight there more than a share of the mean
        that grows with its age (Envoy calls this slow start).

They count as waiting, and each as holding what the mean running request holds of a
cache. An endpoint whose word is stale, or that never said anything, counts as the
mean of the others in all it did not say; where nobody said anything that leaves
the requests in flight, and strategies become least load.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from extproc.core.endpoint import Endpoint
from extproc.core.signals import Reading, Signals
from extproc.core.spec import SignalsSpec


class Estimate(NamedTuple):
    """An endpoint as it probably is at this moment."""

    endpoint: Endpoint
    inflight: int
    """Our requests there."""
    queue: float
    """Requests that wait there."""
    kv_usage: float
    """Share of the KV cache that requests hold; above 1 where more wait for it."""


class _Mean(NamedTuple):
    """The mean of what known endpoints say, and of our requests there."""

    waiting: float = 0.0
    running: float = 0.0
    kv_usage: float = 0.0
    inflight: float = 0.0

    @property
    def share(self) -> float:
        """Of a cache, held by one running request."""
        return self.kv_usage / self.running if self.running else 0.0


def estimates(
    endpoints: Sequence[Endpoint], loads: Mapping[str, int], signals: Signals, spec: SignalsSpec
) -> list[Estimate]:
    """An estimate for each endpoint, in the same order."""
    readings = signals.fresh((e.address for e in endpoints), spec.stale_after_seconds)
    inflight = [loads.get(endpoint.address, 0) for endpoint in endpoints]
    known = [(r, n) for r, n in zip(readings, inflight, strict=True) if r is not None]
    mean = _mean(known)
    typical_inflight = sum(inflight) / len(inflight) if inflight else 0.0
    found = []
    for endpoint, reading, ours in zip(endpoints, readings, inflight, strict=True):
        more = _unknown(reading, ours, mean)
        warmth = _warmth(signals.age(endpoint.address), spec.slow_start_seconds)
        if warmth < 1:
            more = max(more, ours - warmth * typical_inflight)
        waiting, kv_usage = reading.load if reading else (mean.waiting, mean.kv_usage)
        queue = max(0.0, waiting + more)
        found.append(Estimate(endpoint, ours, queue, max(0.0, kv_usage + more * mean.share)))
    return found


def _mean(known: Iterable[tuple[Reading, int]]) -> _Mean:
    rows = [(r.load.waiting, r.running, r.load.kv_usage, float(ours)) for r, ours in known]
    if not rows:
        return _Mean()
    return _Mean(*(sum(column) / len(rows) for column in zip(*rows, strict=True)))


def _unknown(reading: Reading | None, inflight: int, mean: _Mean) -> float:
    """Requests there that are not in what the endpoint said; negative where some are over."""
    if reading is None:
        return inflight - mean.inflight
    return max(inflight - reading.inflight, inflight - reading.load.waiting - reading.running)


def _warmth(age: float | None, slow_start: float) -> float:
    """From 0 for an endpoint that has just come to 1 for one that is not held back."""
    if age is None or slow_start <= 0:
        return 1.0
    return min(1.0, age / slow_start)
