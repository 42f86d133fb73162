"""How loaded endpoints are now, judged by what they last said and what was sent since.

A reading is up to a second old, and every sidecar that believes it sends the same
way: the endpoint that looks best is flooded before it can say so (a new pod, all
zeros, most of all). So requests are added to what an endpoint said, the largest of

    what we have in flight there more than when it said so;
    what we have in flight there more than it knew of, which is what gives away an
        engine that hangs: its metrics still answer, and say that nothing runs;
    for an endpoint that came after the others, what we have in flight there more than
        a share of their mean that grows with its age (Envoy calls this slow start).

They count as waiting, and each as holding what the mean running request holds of a
cache. An endpoint whose word is stale, or that never said anything, counts as the
mean of the others, and so does a new one that has its share; where nobody said
anything that leaves the requests in flight.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import NamedTuple

from extproc.core.fleet.endpoint import Endpoint
from extproc.core.fleet.signals import Reading, Signals
from extproc.core.schema import SignalsSpec


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
    """What is known of endpoints on the mean, and what we have in flight there now."""

    waiting: float
    kv_usage: float
    running: float
    ours: float


def estimates(
    endpoints: Sequence[Endpoint], loads: Mapping[str, int], signals: Signals, spec: SignalsSpec
) -> list[Estimate]:
    """An estimate for each endpoint, in the same order."""
    addresses = [endpoint.address for endpoint in endpoints]
    inflight = [loads.get(address, 0) for address in addresses]
    readings = signals.fresh(addresses, spec.stale_after_seconds)
    allowed = _allowed(addresses, inflight, signals, spec.slow_start_seconds)
    mean = _mean(readings, inflight, allowed)
    # Of a cache, held by one running request.
    share = mean.kv_usage / mean.running if mean.running else 0.0
    found = []
    for i, reading in enumerate(readings):
        ours = inflight[i]
        if reading is None:
            waiting, kv_usage, _, known = mean
            more = max(0.0, ours - known)
        else:
            (waiting, kv_usage), _, known, *_ = reading
            more = ours - known
        if allowed is not None and ours >= allowed[i]:
            waiting, kv_usage = max(waiting, mean.waiting), max(kv_usage, mean.kv_usage)
            more = max(more, ours - allowed[i])
        queue, kv_usage = waiting + more, kv_usage + more * share
        found.append(
            Estimate(
                endpoints[i], ours, queue if queue > 0 else 0.0, kv_usage if kv_usage > 0 else 0.0
            )
        )
    return found


def _mean(
    readings: Sequence[Reading | None], inflight: Sequence[int], allowed: Sequence[float] | None
) -> _Mean:
    """Of those that said something and are not new."""
    number = 0
    waiting = kv_usage = running = requests = 0.0
    for i, reading in enumerate(readings):
        if reading is not None and (allowed is None or allowed[i] == inf):
            number += 1
            load = reading.load
            waiting += load.waiting
            kv_usage += load.kv_usage
            running += reading.running
            requests += inflight[i]
    number = number or 1
    return _Mean(waiting / number, kv_usage / number, running / number, requests / number)


def _allowed(
    addresses: Sequence[str], inflight: Sequence[int], signals: Signals, slow_start: float
) -> list[float] | None:
    """How many requests each may have for its age; None where none is held back.

    New is who came after others: where all came together, as when we start, none is.
    """
    ages = signals.new_endpoints(addresses, slow_start)
    if not ages:
        return None
    grown_at = slow_start if len(ages) < len(addresses) else max(ages.values())
    shares = [ages.get(address, inf) / grown_at if grown_at else 1.0 for address in addresses]
    grown = [ours for ours, share in zip(inflight, shares, strict=True) if share >= 1]
    mean = sum(grown) / len(grown)
    return [mean * share if share < 1 else inf for share in shares]
