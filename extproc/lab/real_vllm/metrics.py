"""What a real engine says of itself at one moment: the counts that tests compare with."""

from __future__ import annotations

from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample


@dataclass(frozen=True)
class CacheUse:
    """Prompt tokens looked for in the prefix cache, and those found."""

    queries: int
    hits: int

    def __add__(self, other: CacheUse) -> CacheUse:
        return CacheUse(self.queries + other.queries, self.hits + other.hits)

    def __sub__(self, other: CacheUse) -> CacheUse:
        return CacheUse(self.queries - other.queries, self.hits - other.hits)

    @property
    def rate(self) -> float:
        """Of what was looked for, the part that was found."""
        return self.hits / self.queries if self.queries else 0.0


class Metrics:
    """An engine's /metrics, read once."""

    def __init__(self, text: str) -> None:
        self._samples: dict[str, list[Sample]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                self._samples.setdefault(sample.name, []).append(sample)

    def value(self, name: str) -> float:
        """The sum of a metric's samples; 0 for one that is not there."""
        return sum(sample.value for sample in self._samples.get(name, ()))

    def labels(self, name: str) -> dict[str, str]:
        """The labels of a metric's largest sample; none before the engine has one.

        vLLM keeps saying label sets that are over; where the value is a time, the largest is now.
        """
        samples = self._samples.get(name)
        return max(samples, key=lambda sample: sample.value).labels if samples else {}

    @property
    def held(self) -> int:
        """Requests in the engine: those that run and those that wait to."""
        running = self.value("vllm:num_requests_running")
        return int(running + self.value("vllm:num_requests_waiting"))

    @property
    def cache_use(self) -> CacheUse:
        """Since the engine started."""
        return CacheUse(
            int(self.value("vllm:prefix_cache_queries_total")),
            int(self.value("vllm:prefix_cache_hits_total")),
        )
