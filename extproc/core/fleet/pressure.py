"""The load of endpoints that this sidecar did not cause, by their own metrics.

A sidecar sees its own requests start and end. Only the engine's metrics, a few times a second,
show the requests of other sidecars, the engine's queue and its KV cache. This module converts them
to the units that a strategy adds to its own load: requests, and tokens to compute.
"""

from __future__ import annotations

from typing import NamedTuple

from extproc.core.fleet.totals import Totals
from extproc.core.fleet.weights import Weights

_FILLING = 0.7
"""The KV cache usage above which it counts as load, because running requests still grow."""

_DECAY = 0.99
"""The weight that earlier samples keep with each new one: about a hundred count."""


class ObservedLoad(NamedTuple):
    """A sample of an endpoint's load."""

    waiting: float
    running: float
    kv_usage: float

    ours: float
    """Those of the waiting and running requests that this sidecar sent."""

    others_in_prefill: float
    """Requests from other sidecars that have not produced a first token."""


class Pressure:
    """Writes the load of others to the totals of `requests` and of `tokens` to compute."""

    def __init__(self, weights: Weights, requests: Totals, tokens: Totals) -> None:
        self._weights = weights
        self._requests = requests
        self._tokens = tokens
        self._sampled_at: dict[str, float] = {}
        self._all = 0.0
        self._ours = 0.0

    @property
    def share_of_others(self) -> float:
        """Share of recent requests on all endpoints that other sidecars sent; 0 if unknown."""
        return 1 - self._ours / self._all if self._all else 0.0

    def record(self, address: str, load: ObservedLoad, mean_prompt: float, now: float) -> None:
        """Take an endpoint's latest sample. `mean_prompt` tokens are computed per prompt."""
        there = load.waiting + load.running
        self._sampled_at[address] = now
        self._all = self._all * _DECAY + there
        self._ours = self._ours * _DECAY + min(load.ours, there)
        weights = self._weights
        # A queue longer than the batch is an overload that routing cannot resolve.
        queue = weights.waiting * min(load.waiting, load.running)
        self._requests.set_others(address, max(0.0, there - load.ours) + queue)
        full = weights.full * max(0.0, load.kv_usage - _FILLING) / (1 - _FILLING)
        unseen = weights.others * load.others_in_prefill * mean_prompt
        self._tokens.set_others(address, unseen + full)

    def forget(self, address: str) -> None:
        """Forget an endpoint that left or restarted."""
        self._sampled_at.pop(address, None)
        self._requests.forget_others(address)
        self._tokens.forget_others(address)

    def expire(self, oldest: float) -> None:
        """Forget the samples from before that time."""
        for address in [a for a, at in self._sampled_at.items() if at < oldest]:
            self.forget(address)
