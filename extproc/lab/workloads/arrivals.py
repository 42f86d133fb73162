"""Random pauses between the starts of sessions."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from random import Random

from extproc.lab.workloads.workload import Workload


def pauses(workload: Workload, rng: Random) -> Iterator[float]:
    """Yield the seconds between the first session and the second, and so on without an end.

    The workload must have a rate. Sessions that start together have pauses of 0 between them.
    """
    rate, shape, together = workload.requests_per_second, workload.burstiness, workload.at_once
    assert rate is not None
    for number in count(1):
        if number % together:
            yield 0.0
        elif shape == 1:
            yield rng.expovariate(rate / together)
        else:
            yield rng.gammavariate(shape, together / (rate * shape))
