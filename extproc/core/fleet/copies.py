"""The value of a further copy of a prefix.

The first request that brings a prefix to an endpoint computes it, and later requests find it there.
So the prefix of a popular system prompt deserves a copy on every endpoint, and the history of one
conversation does not. The expected number of uses decides: the rate of requests with the prefix,
divided by the copies, times the seconds that a cache keeps what it computes. A cache that replaces
its contents twice a minute has no room for more copies. Each use is worth what it saves: the
endpoints with the prefix serve its requests together, and a further copy relieves them only if
others hold fewer prompts.

A prefix may lose its popularity at any time. If an endpoint with the prefix can serve the next
request soon, further copies need proof: a prefix that has been in use for some time is expected to
be in use for as long again. So copies that are never used cost at most about as much as those that
come too late.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from math import exp

from extproc.core.fleet.prefix_index import PrefixIndex

WINDOW_SECONDS = 30.0
"""Seconds over which rates are measured."""

_LEAST_SECONDS = 3.0
"""Seconds over which a new rate is measured at least: one request is no high rate."""

_LEAST_FILLING_SECONDS = 10.0
"""The same for the tokens that a fleet computes: empty caches fill fast at first."""

_FADE_SECONDS = 0.25
"""Least seconds between two times at which the sums of all endpoints are brought up to date."""

_LONGEST_SECONDS = 600.0
"""Longest time that a cache is assumed to keep its contents: demand changes within minutes."""


class _Count:
    """Requests with one prefix in one window."""

    __slots__ = ("number", "since", "used_since")

    def __init__(self, since: float, used_since: float) -> None:
        self.number = 0
        """Number of these requests."""
        self.since = since
        """Time of the first one."""
        self.used_since = used_since
        """Time since which no window was without such a request."""


_Counts = dict[int, _Count]
"""Requests by prefix."""


class Copies:
    """Rates of requests by prefix, and of computed prompt tokens by endpoint.

    The hash of its last block identifies a prefix.
    """

    def __init__(self, clock: Callable[[], float], prefixes: PrefixIndex) -> None:
        self._clock = clock
        self._prefixes = prefixes
        self._before: _Counts = {}
        self._counts: _Counts = {}
        self._computed: defaultdict[str, float] = defaultdict(float)
        self._began = self._faded_at = clock()
        self._first_at: float | None = None

    def requested(self, prefix: int) -> None:
        """Record a request with this prefix."""
        now = self._clock()
        self._turn(now)
        present = self._counts.get(prefix)
        if present is None:
            before = self._before.get(prefix)
            present = _Count(now, before.used_since if before else now)
            self._counts[prefix] = present
        present.number += 1

    def computed(self, address: str, tokens: float) -> None:
        """Record prompt tokens that an endpoint must compute and will have in its cache."""
        if self._first_at is None:
            self._first_at = self._clock()
        self._computed[address] += tokens

    def demand(self, prefix: int) -> float:
        """Return the requests per second with this prefix."""
        now = self._clock()
        self._turn(now)
        present, before = self._counts.get(prefix), self._before.get(prefix)
        if present is None and before is None:
            return 0.0
        requests, since = (float(present.number), present.since) if present else (0.0, now)
        if before is not None:
            since = before.since
            requests += before.number * (1 - (now - self._began) / WINDOW_SECONDS)
        return requests / min(max(now - since, _LEAST_SECONDS), WINDOW_SECONDS)

    def used_seconds(self, prefix: int) -> float:
        """Return how long this prefix has been in use, without a window in which it was not."""
        now = self._clock()
        self._turn(now)
        latest = self._counts.get(prefix) or self._before.get(prefix)
        return now - latest.used_since if latest else 0.0

    def kept_seconds(self, addresses: Iterable[str]) -> float:
        """Return how long these caches keep what they compute now, at most ten minutes.

        This is the mean over the endpoints.
        """
        now = self._clock()
        self._fade(now)
        first_at = now if self._first_at is None else self._first_at
        measured = max(now - first_at, _LEAST_FILLING_SECONDS)
        window = WINDOW_SECONDS * (1 - exp(-measured / WINDOW_SECONDS))
        room = tokens = 0.0
        for address in addresses:
            room += self._prefixes.room(address)
            tokens += self._computed.get(address, 0.0)
        return room / max(tokens / window, room / _LONGEST_SECONDS)

    def forget(self, address: str) -> None:
        """Forget an endpoint that left or restarted."""
        self._computed.pop(address, None)

    def _turn(self, now: float) -> None:
        """Begin a new window if the present one is over."""
        if now >= self._began + WINDOW_SECONDS:
            is_next = now < self._began + 2 * WINDOW_SECONDS
            self._before, self._counts = (self._counts if is_next else {}), {}
            self._began = now

    def _fade(self, now: float) -> None:
        """Let earlier amounts fade, so that each sum is about that of a window."""
        if now < self._faded_at + _FADE_SECONDS:  # each model asks
            return
        factor = exp((self._faded_at - now) / WINDOW_SECONDS)
        self._faded_at = now
        for address in self._computed:
            self._computed[address] *= factor
