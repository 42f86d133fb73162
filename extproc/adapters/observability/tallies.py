"""Metrics of every request, counted in plain numbers.

The client library's counters take a lock and look up their labels at each call, in total some 5 us
per request. All requests run in one event loop, so plain numbers are safe.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from math import inf

from prometheus_client.metrics_core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


class Tally(Collector):
    """A counter for each combination of label values."""

    def __init__(self, name: str, documentation: str, labels: Sequence[str]) -> None:
        self._described = name, documentation
        self._labels = labels
        self._counts: dict[tuple[str, ...], int] = {}

    @property
    def counts(self) -> Mapping[tuple[str, ...], int]:
        """The counts by label values."""
        return self._counts

    def count(self, *values: str) -> None:
        """Count one more for these label values."""
        self._counts[values] = self._counts.get(values, 0) + 1

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(*self._described, labels=self._labels)
        for values, count in self._counts.items():
            family.add_metric(values, count)
        yield family


class Distribution(Collector):
    """A histogram without labels; `bounds` of its buckets in rising order, without infinity."""

    def __init__(self, name: str, documentation: str, bounds: Sequence[float]) -> None:
        self._described = name, documentation
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value; a value equal to a bound is within it."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    @property
    def bounds(self) -> Sequence[float]:
        """Upper bounds of the buckets, without infinity."""
        return self._bounds

    @property
    def counts(self) -> Sequence[int]:
        """Values in each bucket, and then above all bounds."""
        return self._counts

    @property
    def sum(self) -> float:
        """Sum of all values."""
        return self._sum

    def collect(self) -> Iterator[Metric]:
        names = [floatToGoString(b) for b in (*self._bounds, inf)]  # type: ignore[no-untyped-call]
        family = HistogramMetricFamily(*self._described)
        buckets = list(zip(names, map(float, accumulate(self._counts)), strict=True))
        family.add_metric([], buckets, self._sum)
        yield family
