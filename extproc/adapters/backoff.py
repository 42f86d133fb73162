"""Waits between attempts, with client-go's numbers."""

from __future__ import annotations

from random import Random

FIRST_SECONDS = 0.8
LONGEST_SECONDS = 30.0


class Backoff:
    """Waits that double from 0.8 s to 30 s, each shortened at random by up to a half.

    client-go lengthens waits at random instead, up to a minute. The sidecar promises to catch up
    within 35 s of the API server's return.
    """

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._attempts = 0

    def reset(self) -> None:
        """Make the next wait short, after a success."""
        self._attempts = 0

    def next(self) -> float:
        """Return the seconds to wait before the next attempt."""
        longest = min(LONGEST_SECONDS, FIRST_SECONDS * 2.0**self._attempts)
        # More doublings change nothing, and would overflow after a day without a server.
        self._attempts = min(self._attempts + 1, 10)
        return max(FIRST_SECONDS, self._rng.uniform(longest / 2, longest))
