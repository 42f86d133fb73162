"""The ids of stored responses, chosen by the sidecar so that each names the endpoint that has it.

`/v1/responses/{id}` and `previous_response_id` make sense on one endpoint only: the one that made
the response. vLLM takes a response's id from `request_id` in the request's body. The sidecar sets
it where a client does not, so it need not read responses to learn their ids, every sidecar
understands the ids of every other one, and a restart forgets none:

    resp_  a1b2c3d4e5f60718293a4b5c  9f8e7d6c
           24 random hex digits      XXH32 of the endpoint's address

Where Envoy's retry went to another endpoint than the chosen one, the id is wrong. Those few are
remembered here, by this sidecar.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache

import xxhash

from extproc.core.fleet.endpoint import Endpoint

REQUEST_ID = "request_id"
"""The body's field."""
PREVIOUS = "previous_response_id"
"""The body's field that refers to an earlier response."""
STORE = "store"
"""The body's field that turns storing off."""
FIELDS = frozenset((REQUEST_ID, PREVIOUS, STORE))

MOST_MOVED = 10_000
"""Responses remembered because another endpoint made them than the chosen one."""

_RANDOM_BYTES = 12
_ID = re.compile(r"resp_[0-9a-f]{24}([0-9a-f]{8})")
_KEPT = 4096
_OPENING = re.compile(rb"[ \t\r\n]*\{[ \t\r\n]*")
_CLOSING = b"}"


class ResponseIds:
    """Gives ids to responses, and finds the endpoints of ids."""

    def __init__(self, random_bytes: Callable[[int], bytes]) -> None:
        """`random_bytes` must be unpredictable: an id is all that one needs to read a response."""
        self._random_bytes = random_bytes
        self._moved: dict[str, str] = {}

    def assign(self, address: str) -> str:
        """Return a new id for a response that the endpoint at this address makes."""
        return f"resp_{self._random_bytes(_RANDOM_BYTES).hex()}{_mark(address)}"

    def move(self, response_id: str, address: str) -> None:
        """Remember that another endpoint made the response."""
        if len(self._moved) >= MOST_MOVED:
            del self._moved[next(iter(self._moved))]
        self._moved[response_id] = address

    def holder(self, response_id: object, endpoints: Iterable[Endpoint]) -> str | None:
        """Return the address of the endpoint that has the response; None if it is none of these,
        or the id is none of ours.
        """
        found = _ID.fullmatch(response_id) if isinstance(response_id, str) else None
        if found is None:
            return None
        moved = self._moved.get(found[0])
        for endpoint in endpoints:
            address = endpoint.address
            if address == moved or (moved is None and _mark(address) == found[1]):
                return address
        return None


def with_request_id(head: bytes, request_id: str) -> bytes:
    """Return a JSON object, or its beginning, with this field before all others."""
    opening = _OPENING.match(head)
    if opening is None:
        return head
    end = opening.end()
    comma = b"" if head[end : end + 1] == _CLOSING else b","
    return b'%b"%b":"%b"%b%b' % (
        head[:end],
        REQUEST_ID.encode(),
        request_id.encode(),
        comma,
        head[end:],
    )


@lru_cache(_KEPT)
def _mark(address: str) -> str:
    return xxhash.xxh32_hexdigest(address.encode())
