"""The requests whose prefix only one endpoint has, for PrefixCache's costs.

Such a request is tied to that endpoint. While the endpoint computes another prompt, the request
waits there, or its prefix is computed again elsewhere. So a prompt of w tokens behind b others
delays the tied requests that come meanwhile by

    rate * w * min(b + w/2, the tokens that the endpoint saves of each)

together. This grows with the square of w, so a copy of a long prefix delays many requests.
"""

from __future__ import annotations

from math import exp

_WINDOW_SECONDS = 30.0
"""Seconds over which rates are measured. Earlier requests count less."""

_FORGOTTEN = 0.001
"""Requests below which an endpoint is forgotten, as it may have left."""


class TiedRequests:
    """The tied requests of one model that this sidecar sends."""

    def __init__(self, now: float) -> None:
        self._requests: dict[str, float] = {}
        self._tokens = 0.0
        self._faded_at = now

    @property
    def tokens(self) -> float:
        """The mean tokens that one endpoint alone has of a tied request."""
        requests = sum(self._requests.values())
        return self._tokens / requests if requests else 0.0

    def sent(self, address: str, tokens: float, tied: float) -> None:
        """Record a request with so many prompt tokens. Only this endpoint has `tied` of them.

        It counts by the share of these tokens.
        """
        if tied > 0:
            share = min(1.0, tied / tokens)
            self._requests[address] = self._requests.get(address, 0.0) + share
            self._tokens += tied

    def rate(self, address: str) -> float:
        """Return the requests per second that are tied to an endpoint."""
        return self._requests.get(address, 0.0) / _WINDOW_SECONDS

    def fade(self, now: float) -> None:
        """Let earlier requests count less."""
        factor = exp((self._faded_at - now) / _WINDOW_SECONDS)
        self._faded_at = now
        self._tokens *= factor
        for address, requests in list(self._requests.items()):
            left = requests * factor
            if left < _FORGOTTEN:
                del self._requests[address]
            else:
                self._requests[address] = left
