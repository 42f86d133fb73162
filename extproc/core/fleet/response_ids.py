"""The ids of stored responses. Each id names the endpoint that stores the response.

Only the endpoint that made a response can serve `/v1/responses/{id}` and `previous_response_id`.
vLLM takes the id from `request_id` in the request's body, and the sidecar sets that field if the
client does not. So the sidecar need not read responses to learn their ids, each sidecar
understands the ids of all others, and a restart loses none:

    resp_  a1b2c3d4e5f60718293a4b5c  9f8e7d6c
           24 random hex digits      XXH32 of the endpoint's address

If Envoy retried on another endpoint, the id names the wrong one. This sidecar remembers those.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache

import xxhash

from extproc.core.fleet.endpoint import Endpoint

MOST_MOVED = 10_000
"""Remembered responses of another endpoint than the chosen one."""

_RANDOM_BYTES = 12
_ID = re.compile(r"resp_[0-9a-f]{24}([0-9a-f]{8})")
_CACHED_MARKS = 4096


class ResponseIds:
    """Assigns ids to responses, and finds the endpoint of an id."""

    def __init__(self, random_bytes: Callable[[int], bytes]) -> None:
        """`random_bytes` must be unpredictable: an id is all a client needs to read a response."""
        self._random_bytes = random_bytes
        self._moved: dict[str, str] = {}

    def assign(self, address: str) -> str:
        """Return a new id for a response of the endpoint at this address."""
        return f"resp_{self._random_bytes(_RANDOM_BYTES).hex()}{_mark(address)}"

    def move(self, response_id: str, address: str) -> None:
        """Remember that another endpoint made the response."""
        if len(self._moved) >= MOST_MOVED:
            del self._moved[next(iter(self._moved))]
        self._moved[response_id] = address

    def holder(self, response_id: object, endpoints: Iterable[Endpoint]) -> str | None:
        """Return the address of the endpoint that stores the response.

        Return None if it is none of these endpoints, or if no sidecar assigned the id.
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


@lru_cache(_CACHED_MARKS)
def _mark(address: str) -> str:
    return xxhash.xxh32_hexdigest(address.encode())
