"""The request headers that flow control reads."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b

from extproc.core.schema.flow_control import TIMEOUT_HEADER

_LONGEST_NUMBER = 12  # digits


def tenant_hash(value: str) -> str:
    """Return 16 hexadecimal digits that identify a tenant; empty for an empty value.

    The value may be an API key, so it is never kept.
    """
    return blake2b(value.encode(), digest_size=8).hexdigest() if value else ""


def timeout_of(headers: Mapping[str, str]) -> float | None:
    """Return the client's timeout in seconds; None if the header is missing or no number."""
    text = headers.get(TIMEOUT_HEADER, "").strip()
    if not (text.isascii() and text.isdigit()) or len(text) > _LONGEST_NUMBER:
        return None
    return int(text) / 1000
