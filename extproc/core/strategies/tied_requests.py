"""The requests whose prefix only one endpoint has, for PrefixCache's costs.

Such a request is tied to that endpoint. While the endpoint computes a copy of another prefix, the
request waits there, or its prefix is computed again elsewhere. So a copy of w tokens behind b
others delays the tied requests that come meanwhile by

    rate * w * min(b + w/2, tokens of their prompts)

together. Up to that limit, this grows with the square of w: a copy of a long prefix delays many
requests.

Only the requests of this sidecar are known. The less of the traffic it sends, the less this cost
counts. After an engine restarts, its earlier requests count until they fade.
"""

from __future__ import annotations

from math import exp

_WINDOW_SECONDS = 30.0
"""Seconds over which rates are measured. Earlier requests count less."""

_FORGOTTEN = 0.001
"""Requests below which an endpoint is forgotten, as it may have left."""


class _Sum:
    """Tied requests, and the tokens of their prompts."""

    __slots__ = ("requests", "tokens")

    def __init__(self) -> None:
        self.requests = 0.0
        self.tokens = 0.0

    def add(self, requests: float, tokens: float) -> None:
        self.requests += requests
        self.tokens += tokens


class TiedRequests:
    """The tied requests of one model that this sidecar sends."""

    def __init__(self, now: float) -> None:
        self._each: dict[str, _Sum] = {}
        self._all = _Sum()  # each request asks for their mean
        self._faded_at = now

    @property
    def tokens(self) -> float:
        """The mean tokens of their prompts."""
        return self._all.tokens / self._all.requests if self._all.requests else 0.0

    def sent(self, address: str, tokens: float, tied: float) -> None:
        """Record a request with so many prompt tokens.

        The endpoint has `tied` more of them than any other, and the request counts by their share.
        """
        if tied > 0:
            share = tied / tokens
            self._each.setdefault(address, _Sum()).add(share, tied)
            self._all.add(share, tied)

    def rate(self, address: str) -> float:
        """Return the requests per second that are tied to an endpoint."""
        one = self._each.get(address)
        return one.requests / _WINDOW_SECONDS if one else 0.0

    def fade(self, now: float) -> None:
        """Let earlier requests count less."""
        factor = exp((self._faded_at - now) / _WINDOW_SECONDS)
        self._faded_at = now
        self._all = _Sum()
        for address, one in list(self._each.items()):
            one.requests *= factor
            one.tokens *= factor
            if one.requests < _FORGOTTEN:
                del self._each[address]
            else:
                self._all.add(one.requests, one.tokens)
