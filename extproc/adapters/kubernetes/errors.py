"""Errors of requests to the API server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CONFLICT = 409
"""Status for an object that exists already."""


class KubernetesError(Exception):
    """A request to the API server failed; the message is one line."""


class Unreachable(KubernetesError):
    """The response did not arrive, or did not arrive completely."""


class MalformedResponse(KubernetesError):
    """The response does not have the form that the API defines."""


class ApiStatusError(KubernetesError):
    """The API server responded with an error status."""

    def __init__(self, code: int, message: str, retry_after: float = 0.0) -> None:
        super().__init__(f"{code} {message}")
        self.code = code
        self.retry_after = retry_after
        """Seconds for which the server asks to wait; 0 if it does not ask."""


def one_line(error: object) -> str:
    """Return the first line of an error's message, at most 500 characters."""
    lines = str(error).splitlines()
    return lines[0][:500] if lines else type(error).__name__


def retry_after(status: Mapping[str, Any]) -> float:
    """Return the seconds for which a Status object asks to wait; 0 if it does not ask."""
    details = status.get("details")
    seconds = details.get("retryAfterSeconds") if isinstance(details, dict) else None
    return float(max(seconds, 0)) if isinstance(seconds, int) else 0.0
