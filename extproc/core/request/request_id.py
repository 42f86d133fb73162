"""The id of a request: Envoy's header `x-request-id`, which a client can set.

The id is written into headers, bodies and logs, so its length and its characters are limited.
"""

from __future__ import annotations

from collections.abc import Mapping

HEADER = "x-request-id"
"""Envoy's request header, and OpenAI's response header with the same content."""

ANTHROPIC_HEADER = "request-id"
"""Anthropic's response header."""

_MAX_LENGTH = 128
_SAFE = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.:/+=@~"
_UNSAFE = bytes(set(range(256)) - set(_SAFE))


def request_id_of(headers: Mapping[str, bytes]) -> str:
    """Return the id in a request's headers, without unusual characters; empty if there is none."""
    raw = headers.get(HEADER)
    return raw[:_MAX_LENGTH].translate(None, _UNSAFE).decode("ascii") if raw else ""


def response_headers(request_id: str, *, anthropic: bool) -> dict[str, str]:
    """Return the response headers with the id, under the names that the client's SDK reads."""
    if not request_id:
        return {}
    if anthropic:
        return {HEADER: request_id, ANTHROPIC_HEADER: request_id}
    return {HEADER: request_id}
