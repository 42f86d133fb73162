"""The metrics of a real engine at one moment, to compare the sidecar's counts with."""

from __future__ import annotations

from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample


@dataclass(frozen=True)
class CacheUse:
    """Prompt tokens looked up in the prefix cache, and those found."""

    queries: int
    hits: int

    def __add__(self, other: CacheUse) -> CacheUse:
        return CacheUse(self.queries + other.queries, self.hits + other.hits)

    def __sub__(self, other: CacheUse) -> CacheUse:
        return CacheUse(self.queries - other.queries, self.hits - other.hits)

    @property
    def rate(self) -> float:
        """The hit rate, 0 to 1."""
        return self.hits / self.queries if self.queries else 0.0


class Metrics:
    """The parsed /metrics of an engine."""

    def __init__(self, text: str) -> None:
        self.text = text
        """The exposition."""
        self._samples: dict[str, list[Sample]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                self._samples.setdefault(sample.name, []).append(sample)

    def value(self, name: str) -> float:
        """Return the sum of a metric's samples; 0 without samples."""
        return sum(sample.value for sample in self._samples.get(name, ()))

    def labels(self, name: str) -> dict[str, str]:
        """Return the labels of a metric's largest sample; empty without samples.

        vLLM never removes old label sets. If the value is a time, the largest one is current.
        """
        samples = self._samples.get(name)
        return max(samples, key=lambda sample: sample.value).labels if samples else {}

    @property
    def held(self) -> int:
        """Running and waiting requests."""
        running = self.value("vllm:num_requests_running")
        return int(running + self.value("vllm:num_requests_waiting"))

    @property
    def cache_use(self) -> CacheUse:
        """The cache use since the engine started."""
        return CacheUse(
            int(self.value("vllm:prefix_cache_queries_total")),
            int(self.value("vllm:prefix_cache_hits_total")),
        )
