"""Results of readings."""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

METRICS = "/metrics"
MODELS = "/v1/models"


class Result(StrEnum):
    """Result of a reading, as the metrics count it."""

    OK = "ok"
    """The response was read."""

    UNREACHABLE = "unreachable"
    """No connection, or it broke before the response was complete."""

    TIMEOUT = "timeout"
    """The response was not complete in time."""

    STATUS = "status"
    """The response had a status other than 200."""

    TOO_LARGE = "too_large"
    """The response exceeded a limit."""

    GARBLED = "garbled"
    """The response was not HTTP, or lacked what it should contain."""


class Failure(Exception):
    """A reading failed; the message has the reason."""

    def __init__(self, result: Result, why: object, status: int = 0) -> None:
        super().__init__(f"{why}"[:200] or result.value)
        self.result = result
        self.status = status
        """Status of the response if that is the reason; otherwise 0."""


class ScrapeListener(Protocol):
    """Counts readings."""

    def signal_read(self, path: str, result: str) -> None:
        """Receive the result of reading this path of an endpoint."""
