"""Errors of requests to the API server."""

from __future__ import annotations

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

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code} {message}")
        self.code = code


def one_line(error: object) -> str:
    """Return the first line of an error's message, at most 500 characters."""
    lines = str(error).splitlines()
    return lines[0][:500] if lines else type(error).__name__
