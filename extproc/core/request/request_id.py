"""The id of a request: Envoy's `x-request-id`, which may be a client's own.

It goes into headers, bodies and logs, so neither its length nor its characters are trusted.
"""

from __future__ import annotations

from collections.abc import Mapping

HEADER = "x-request-id"
"""Envoy's name for it, and OpenAI's for the same header of a response."""

ANTHROPIC_HEADER = "request-id"
"""Anthropic's name for the header of a response."""

_LONGEST = 128
_SAFE = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.:/+=@~"
_UNSAFE = bytes(set(range(256)) - set(_SAFE))


def request_id_of(headers: Mapping[str, bytes]) -> str:
    """Return the id in a request's headers, without unusual characters; empty if there is none."""
    raw = headers.get(HEADER)
    return raw[:_LONGEST].translate(None, _UNSAFE).decode("ascii") if raw else ""


def response_headers(request_id: str, *, anthropic: bool) -> dict[str, str]:
    """Return the headers that tell a client the id, by the names that its SDK reads."""
    if not request_id:
        return {}
    if anthropic:
        return {HEADER: request_id, ANTHROPIC_HEADER: request_id}
    return {HEADER: request_id}
