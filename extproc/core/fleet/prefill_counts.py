"""The requests of all sidecars that an engine's metrics show without a first token.

The counters give present and finished requests minus first tokens. Requests that ended without a
first token stay in that difference. Its recent minimum is their number. They are finished requests,
so a new engine has none, although it may be busy at each reading.
"""

from __future__ import annotations

from extproc.core.fleet.report import Report
from extproc.core.fleet.rolling_minimum import RollingMinimum


class PrefillCounts:
    """The requests without a first token on each endpoint, by address."""

    def __init__(self) -> None:
        self._unexplained: dict[str, RollingMinimum] = {}

    def read(self, address: str, report: Report, now: float) -> float | None:
        """Take a reading. Return the number; None if counters are missing."""
        if report.first_tokens is None or report.finished is None:
            return None
        waiting = report.load.waiting
        seen = waiting + report.running + report.finished - report.first_tokens
        minimum = self._unexplained.setdefault(address, RollingMinimum())
        unexplained = min(minimum.add(seen, now), report.finished)
        return max(waiting, seen - unexplained)

    def forget(self, address: str) -> None:
        """Forget an endpoint that left or restarted."""
        self._unexplained.pop(address, None)
