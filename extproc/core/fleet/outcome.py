"""What the head of an answer says of the endpoint that was asked for it."""

from __future__ import annotations

from enum import StrEnum

_FAILED = frozenset({500, 502, 503, 504})
"""What proxies and engines say when they cannot; 501, 505 and the like are about the request."""

_BY_UPSTREAM = "via_upstream"
_RESET = "upstream_reset_before_response_started{"
_OVERFLOW = _RESET + "overflow}"
_TIMEOUTS = frozenset(
    {"response_timeout", "upstream_per_try_timeout", "upstream_per_try_idle_timeout"}
)
_NONE_LEFT = "no_healthy_upstream"


class Outcome(StrEnum):
    """How an endpoint did with a request; the failures are labels of a metric."""

    SERVED = "served"
    """It answered, be it that the client has made a mistake (4xx) or must wait (429)."""

    ERROR = "error"
    """It answered 500, 502, 503 or 504."""

    RESET = "reset"
    """The connection was refused, or ended before an answer began."""

    TIMEOUT = "timeout"
    """It did not answer within the time that Envoy gives it."""

    REPLACED = "replaced"
    """Envoy tried it, and then another endpoint, which answered."""


def outcome_of(status: int, details: str) -> Outcome | None:
    """How it went with the endpoint that Envoy says was asked last; None where nobody can tell.

    `details` are Envoy's `response.code_details`: whether upstream or Envoy itself made the
    answer, and why. Where it does not tell them, a failure counts as the endpoint's error.
    """
    if details in (_BY_UPSTREAM, ""):
        return Outcome.ERROR if status in _FAILED else Outcome.SERVED if status else None
    if details.startswith(_RESET):
        # Envoy's own limits: it did not ask.
        return None if details == _OVERFLOW else Outcome.RESET
    if details in _TIMEOUTS:
        return Outcome.TIMEOUT
    # As an address is known, somebody was asked: the retry had nowhere to go.
    return Outcome.RESET if details == _NONE_LEFT else None
