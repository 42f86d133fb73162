"""The sum of the known load and of others' load on each endpoint, kept up to date.

A decision reads the sums of all endpoints, often hundreds, and only a few change between two
decisions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping


class Totals:
    """Sums by address. The owner of `ours` calls `changed` after each change of it."""

    def __init__(self, ours: Mapping[str, float]) -> None:
        self._ours = ours
        self._others: dict[str, float] = {}
        self.sums: dict[str, float] = defaultdict(float)
        """Sums by address; 0 if nothing is known."""

    def changed(self, address: str) -> None:
        """Update the sum of an address."""
        # Added from its two parts each time, so that no rounding error remains.
        self.sums[address] = self._ours.get(address, 0) + self._others.get(address, 0.0)

    def set_others(self, address: str, amount: float) -> None:
        """Set the load of others on an address."""
        self._others[address] = amount
        self.changed(address)

    def reduce_others(self, address: str, amount: float) -> None:
        """Subtract an amount from the load of others on an address that has some."""
        self.set_others(address, max(0.0, self._others[address] - amount))

    def forget_others(self, address: str) -> None:
        """Forget the load of others on an address."""
        if self._others.pop(address, None) is not None:
            self.changed(address)
