"""What is ours and what is others' on each endpoint, added up as it changes.

A decision looks at all endpoints at once, hundreds of them, and between two decisions a few
have changed: so the sums are kept, and not made anew each time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping


class Totals:
    """By address; `ours` is kept by somebody else, who calls `changed` for each change."""

    def __init__(self, ours: Mapping[str, float]) -> None:
        self._ours = ours
        self._others: dict[str, float] = {}
        self.sums: dict[str, float] = defaultdict(float)
        """0 where nothing is known."""

    def changed(self, address: str) -> None:
        """What is ours there is another amount now."""
        # Added up from its two parts each time, so that no rounding stays behind.
        self.sums[address] = self._ours.get(address, 0) + self._others.get(address, 0.0)

    def set_others(self, address: str, amount: float) -> None:
        """So much there is others'."""
        self._others[address] = amount
        self.changed(address)

    def forget_others(self, address: str) -> None:
        """Nothing is known of others there any more."""
        if self._others.pop(address, None) is not None:
            self.changed(address)
