"""How a reading of an endpoint ends."""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

METRICS = "/metrics"
MODELS = "/v1/models"


class Result(StrEnum):
    """What came of asking an endpoint; shown in metrics."""

    OK = "ok"
    """It said what it was asked for."""

    UNREACHABLE = "unreachable"
    """There was no connection, or it broke before the answer was whole."""

    TIMEOUT = "timeout"
    """The answer was not whole in time."""

    STATUS = "status"
    """It answered with another status than 200."""

    TOO_LARGE = "too_large"
    """The answer was larger than any that is read."""

    GARBLED = "garbled"
    """The answer was no HTTP, or does not say what it should."""


class Failure(Exception):
    """A reading that came to nothing; the message says why, the result how it counts."""

    def __init__(self, result: Result, why: object, status: int = 0) -> None:
        super().__init__(f"{why}"[:200] or result.value)
        self.result = result
        self.status = status
        """Of the answer, where that is what failed."""


class ScrapeListener(Protocol):
    """Counts readings."""

    def signal_read(self, path: str, result: str) -> None:
        """An endpoint was asked for this path."""
