"""The estimated load of endpoints now, from their last reading and the requests sent since.

A reading is up to a second old. Sidecars that trust it all choose the same endpoint, and flood it
before its metrics change, most of all a new pod whose numbers are all zero. So the estimate adds
requests to the reading. It adds the largest of these numbers:

- the known in-flight requests there, minus those at the time of the reading;
- the known in-flight requests there, minus those in the reading. This shows an engine that
  hangs: its metrics still respond, and report nothing running;
- for an endpoint that appeared after the others: the known in-flight requests there, minus a
  share of the others' mean that grows with its age (Envoy's slow start).

Each added request counts as waiting, and uses the cache share of a mean running request. An
endpoint without a reading, or with a stale one, counts as the mean of the others. So does a new
one that has its share. If no endpoint has a reading, only in-flight requests count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import NamedTuple

from extproc.core.fleet.endpoint import Endpoint
from extproc.core.fleet.signals import Reading, Signals
from extproc.core.schema import SignalsSpec


class Estimate(NamedTuple):
    """The probable load of an endpoint now."""

    endpoint: Endpoint
    inflight: int
    """Requests there that the sidecar knows: its own, and those of sidecars that share state."""
    queue: float
    """Requests waiting there."""
    kv_usage: float
    """Share of the KV cache that requests hold; above 1 if requests wait for room."""


class _Mean(NamedTuple):
    """The mean of the readings, and of the known in-flight requests now."""

    waiting: float
    kv_usage: float
    running: float
    ours: float


def estimates(
    endpoints: Sequence[Endpoint], loads: Mapping[str, int], signals: Signals, spec: SignalsSpec
) -> list[Estimate]:
    """Return an estimate for each endpoint, in the same order."""
    addresses = [endpoint.address for endpoint in endpoints]
    inflight = [loads.get(address, 0) for address in addresses]
    readings = signals.fresh(addresses, spec.stale_after_seconds)
    allowed = _allowed(addresses, inflight, signals, spec.slow_start_seconds)
    mean = _mean(readings, inflight, allowed)
    # The cache share of one running request.
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
    """Return the mean of the endpoints with a reading that are not new."""
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
    """Return the requests that each endpoint may have for its age; None if there is no limit."""
    shares = signals.starting(addresses, slow_start)
    if not shares:
        return None
    grown = [
        ours for address, ours in zip(addresses, inflight, strict=True) if address not in shares
    ]
    mean = sum(grown) / len(grown)
    return [mean * shares[one] if one in shares else inf for one in addresses]
