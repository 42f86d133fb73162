"""vLLM's gauge of adapters in use, `vllm:lora_requests_info`.

The labels of a series list the adapters of current requests, and its value is the time at which
this was last true. vLLM never removes a series, so only the one with the largest value is current.
An adapter that is loaded but has no requests is not listed.

The labels depend on the release. Older releases separate the adapters of running requests from
those of waiting requests. In 0.32 both labels are equal: they list the adapters of requests that
have at least one token.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from extproc.lab.engine.replica import Replica

STALE_SERIES = 20
"""Old series that the stand-in keeps. vLLM keeps all of them; the limit bounds the memory."""


class LoraLabels(NamedTuple):
    """Names of adapters, separated by commas, in any order."""

    running: str
    waiting: str


class LoraGauge:
    """The gauge of one engine; `separate` for the labels of older releases."""

    def __init__(self, replica: Replica, separate: bool = False) -> None:
        self._replica = replica
        self._separate = separate
        self._series: dict[LoraLabels, float] = {}

    @property
    def series(self) -> Mapping[LoraLabels, float]:
        """Unix time of each set of labels, in the order of their first appearance."""
        return self._series

    def stamp(self, now: float) -> None:
        """Record the current adapters of the replica; called at the end of each step."""
        self._series[self._labels()] = now
        if len(self._series) > STALE_SERIES + 1:
            del self._series[min(self._series, key=self._series.__getitem__)]

    def _labels(self) -> LoraLabels:
        if self._separate:
            running, waiting = self._replica.running_adapters, self._replica.waiting_adapters
            return LoraLabels(_joined(running), _joined(waiting))
        answering = _joined(self._replica.answering_adapters)
        return LoraLabels(answering, answering)


def _joined(adapters: Iterable[str]) -> str:
    return ",".join(adapters)
