"""The longest context of each endpoint, from its own list of models (`max_model_len`)."""

from __future__ import annotations

from collections.abc import Collection

from extproc.core.fleet.endpoint import Snapshot


class ContextLengths:
    """Tokens of prompt and response together, by the endpoint's address."""

    def __init__(self) -> None:
        self._by_address: dict[str, int] = {}

    def set(self, address: str, tokens: int | None) -> None:
        """Record an endpoint's context length; None if its list has none."""
        if tokens is None:
            self._by_address.pop(address, None)
        else:
            self._by_address[address] = tokens

    def keep_only(self, addresses: Collection[str]) -> None:
        """Forget all other endpoints."""
        for address in self._by_address.keys() - set(addresses):
            del self._by_address[address]

    def of(self, snapshot: Snapshot) -> int | None:
        """Return the shortest length of these endpoints, because a request may go to any of them.

        Return None if it is known of no endpoint.
        """
        lengths = map(self._by_address.get, (e.address for e in snapshot.endpoints))
        return min((length for length in lengths if length is not None), default=None)
