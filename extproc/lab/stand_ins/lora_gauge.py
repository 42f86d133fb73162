"""vLLM's gauge of adapters in use: a series for each set of labels there ever was.

The labels say which adapters requests run with, the value says when that was last so. An old
set of labels is never taken back, so the series with the largest value is the one that counts.
It is of requests: an adapter that is loaded and that nobody uses is not listed.

What the labels list depends on the release. Older ones tell adapters with running requests from
those with waiting ones. In 0.32 both labels list the same, the adapters of requests that have a
token: one whose requests all wait for their first token is in neither.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from extproc.lab.engine.replica import Replica

STALE_SERIES = 20
"""How many are kept beside the current one. vLLM keeps all; a stand-in may run for days, too."""


class LoraLabels(NamedTuple):
    """Names of adapters, joined by commas, in no order to rely on."""

    running: str
    waiting: str


class LoraGauge:
    """Of one engine. `told_apart`: running from waiting, as in older releases."""

    def __init__(self, replica: Replica, told_apart: bool = False) -> None:
        self._replica = replica
        self._told_apart = told_apart
        self._series: dict[LoraLabels, float] = {}

    @property
    def series(self) -> Mapping[LoraLabels, float]:
        """Unix time by labels, in the order in which the labels were there first."""
        return self._series

    def stamp(self, now: float) -> None:
        """Takes down what the replica has now; for the end of each of its steps."""
        self._series[self._labels()] = now
        if len(self._series) > STALE_SERIES + 1:
            del self._series[min(self._series, key=self._series.__getitem__)]

    def _labels(self) -> LoraLabels:
        if self._told_apart:
            running, waiting = self._replica.running_adapters, self._replica.waiting_adapters
            return LoraLabels(_joined(running), _joined(waiting))
        answering = _joined(self._replica.answering_adapters)
        return LoraLabels(answering, answering)


def _joined(adapters: Iterable[str]) -> str:
    return ",".join(adapters)
