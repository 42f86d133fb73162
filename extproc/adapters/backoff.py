"""Waits between attempts, with client-go's numbers."""

from __future__ import annotations

from random import Random

FIRST_SECONDS = 0.8
LONGEST_SECONDS = 30.0


class Backoff:
    """0.8 s at first, doubling to 30 s, each shortened at random by up to a half.

    client-go lengthens by jitter instead; then a wait may take a minute, and we
    promise to have caught up 35 s after the API server's return.
    """

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._attempts = 0

    def reset(self) -> None:
        """It worked: the next wait is a short one."""
        self._attempts = 0

    def next(self) -> float:
        """Seconds to wait now."""
        longest = min(LONGEST_SECONDS, FIRST_SECONDS * 2.0**self._attempts)
        # More doublings change nothing, and would overflow after a day without a server.
        self._attempts = min(self._attempts + 1, 10)
        return max(FIRST_SECONDS, self._rng.uniform(longest / 2, longest))
