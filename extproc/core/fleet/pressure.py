"""What weighs on endpoints beside this sidecar's own requests, by the endpoints' own words.

A sidecar sees its own requests come and go. Of those of others, of an engine's queue and of a
KV cache that fills up, only the engine's metrics tell, a few times a second. What they say is
turned here into what a strategy adds up with its own: requests, and tokens to compute.
"""

from __future__ import annotations

from typing import NamedTuple

from extproc.core.fleet.totals import Totals
from extproc.core.fleet.weights import Weights

_FILLING = 0.7
"""Share of a KV cache from which on it matters how full it is: running requests still grow."""

_REMEMBERED = 0.99
"""Of what earlier words said of the share of others, with each new one: some hundred count."""


class ObservedLoad(NamedTuple):
    """What an endpoint said of its load."""

    waiting: float
    running: float
    kv_usage: float

    ours: float
    """Requests of those that are this sidecar's."""

    yet_to_begin: float
    """Requests of others that have no answer yet."""


class Pressure:
    """Writes what is others' to the totals of `requests` and of `tokens` to compute."""

    def __init__(self, weights: Weights, requests: Totals, tokens: Totals) -> None:
        self._weights = weights
        self._requests = requests
        self._tokens = tokens
        self._heard: dict[str, float] = {}
        self._all = 0.0
        self._ours = 0.0

    @property
    def share_of_others(self) -> float:
        """Of the requests on all endpoints of late; 0 where nobody spoke of any."""
        return 1 - self._ours / self._all if self._all else 0.0

    def record(self, address: str, word: ObservedLoad, mean_prompt: float, now: float) -> None:
        """Its latest word; `mean_prompt` tokens are computed for a prompt, mostly."""
        there = word.waiting + word.running
        self._heard[address] = now
        self._all = self._all * _REMEMBERED + there
        self._ours = self._ours * _REMEMBERED + min(word.ours, there)
        weights = self._weights
        # A queue that is longer than the batch is an overload, which no choice ends.
        queue = weights.waiting * min(word.waiting, word.running)
        self._requests.set_others(address, max(0.0, there - word.ours) + queue)
        full = weights.full * max(0.0, word.kv_usage - _FILLING) / (1 - _FILLING)
        unseen = weights.others * word.yet_to_begin * mean_prompt
        self._tokens.set_others(address, unseen + full)

    def forget(self, address: str) -> None:
        """It has left or started anew."""
        self._heard.pop(address, None)
        self._requests.forget_others(address)
        self._tokens.forget_others(address)

    def expire(self, oldest: float) -> None:
        """Forgets what was said before that time."""
        for address in [a for a, heard in self._heard.items() if heard < oldest]:
            self.forget(address)
