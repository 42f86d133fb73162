"""The current faults of the stand-in API server; tests set them."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from extproc.lab.api_server.errors import ApiError

REASONS = {429: "TooManyRequests", 500: "InternalError", 503: "ServiceUnavailable"}
"""Statuses that a test can set for all requests, with their reasons."""


class Faults:
    """The faults that requests and watches check."""

    def __init__(self) -> None:
        self.thawed = asyncio.Event()
        """Event that is not set while the server is frozen."""

        self.thawed.set()
        self.failing = 0
        """Status of all requests, from `REASONS`; 0 for none."""

        self.forbidden: Collection[str] = ()
        """Plurals of resources that answer 403."""

        self.list_delay = 0.0
        self.capacity = 0
        """Most requests that wait for their response, without open watches; 0 for any number."""

        self.garbage = False
        """True to corrupt the next line of a watch."""

    def check_failing(self) -> None:
        """Raise the ApiError of all requests, if a test has set one."""
        if self.failing:
            message = f"a test has set the status {self.failing} for all requests"
            raise ApiError(self.failing, REASONS[self.failing], message)

    def spoiled(self, lines: bytes) -> bytes:
        """Return lines of a watch; with `garbage`, the first one is cut in half."""
        if not self.garbage:
            return lines
        self.garbage = False
        first, _, others = lines.partition(b"\n")
        return first[: len(first) // 2] + b"\n" + others
