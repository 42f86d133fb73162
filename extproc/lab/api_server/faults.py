"""What is wrong with the stand-in API server at the moment; nothing, unless a test says so."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from extproc.lab.api_server.errors import ApiError

REASONS = {429: "TooManyRequests", 500: "InternalError", 503: "ServiceUnavailable"}
"""Of the statuses that every request can be made to fail with."""


class Faults:
    """The switches that requests and watches look at."""

    def __init__(self) -> None:
        self.thawed = asyncio.Event()
        """Not set while everything is frozen."""

        self.thawed.set()
        self.failing = 0
        """A status of `REASONS`; 0: none."""

        self.forbidden: Collection[str] = ()
        """Resources, by their plurals."""

        self.list_delay = 0.0
        self.garbage = False
        """Whether the next line of a watch is to be spoiled."""

    def check_failing(self) -> None:
        """Raises the ApiError that every request fails with."""
        if self.failing:
            message = f"the stand-in was told to fail with {self.failing}"
            raise ApiError(self.failing, REASONS[self.failing], message)

    def spoiled(self, lines: bytes) -> bytes:
        """Lines of a watch; the first is cut in half if that was asked for."""
        if not self.garbage:
            return lines
        self.garbage = False
        first, _, others = lines.partition(b"\n")
        return first[: len(first) // 2] + b"\n" + others
