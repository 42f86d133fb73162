"""The outcome of a request at an endpoint, from the response headers and Envoy's details."""

from __future__ import annotations

from enum import StrEnum

_FAILED = frozenset({500, 502, 503, 504})
"""Statuses of failed proxies and engines; 501, 505 and others are caused by the request."""

_BY_UPSTREAM = "via_upstream"
_RESET = "upstream_reset_before_response_started{"
_OVERFLOW = _RESET + "overflow}"
_TIMEOUTS = frozenset(
    {"response_timeout", "upstream_per_try_timeout", "upstream_per_try_idle_timeout"}
)
_NONE_LEFT = "no_healthy_upstream"


class Outcome(StrEnum):
    """The outcome of a request at an endpoint; the failures are labels of a metric."""

    SERVED = "served"
    """It responded, also with a client error (4xx) or 429."""

    ERROR = "error"
    """It responded with 500, 502, 503 or 504."""

    RESET = "reset"
    """The connection was refused, or ended before a response began."""

    TIMEOUT = "timeout"
    """It did not respond within Envoy's timeout."""

    REPLACED = "replaced"
    """Envoy retried on another endpoint, which responded."""


def outcome_of(status: int, details: str) -> Outcome | None:
    """Return the outcome at the endpoint that Envoy tried last; None if it is unknown.

    `details` are Envoy's `response.code_details`: whether the upstream or Envoy itself made the
    response, and why. Without them, a failure counts as the endpoint's error.
    """
    if details in (_BY_UPSTREAM, ""):
        return Outcome.ERROR if status in _FAILED else Outcome.SERVED if status else None
    if details.startswith(_RESET):
        # Envoy's own limits: it did not try the endpoint.
        return None if details == _OVERFLOW else Outcome.RESET
    if details in _TIMEOUTS:
        return Outcome.TIMEOUT
    # There is an address, so Envoy tried one endpoint, and the retry found no other.
    return Outcome.RESET if details == _NONE_LEFT else None
