"""Addresses that discovery finds, before any of them becomes an endpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import NamedTuple, Protocol

from extproc.adapters.endpoints.screening import RejectionReason


class AddressState(IntEnum):
    """State that Kubernetes reports for an address; a lower one is preferred."""

    READY = 0
    SERVING = 1
    """Terminating, but still serving: selected only if no address is ready."""
    UNREADY = 2
    GONE = 3
    """Terminating, and no longer serving."""

    @property
    def is_terminating(self) -> bool:
        """True if the pod is shutting down, which is final."""
        return self in (AddressState.SERVING, AddressState.GONE)


class FoundAddress(NamedTuple):
    """An address from an EndpointSlice, a pod or a list of names."""

    address: str
    port: int
    pod: str
    """NAMESPACE/POD; empty if the source does not name the pod."""
    state: AddressState


class RejectedAddress(NamedTuple):
    """An address that never receives requests, and the reason."""

    address: str
    reason: RejectionReason


AddressesChanged = Callable[[Iterable[FoundAddress | RejectedAddress]], None]
"""Receives all addresses of a source whenever one of them changes."""


class SourceWatcher(Protocol):
    """Keeps the addresses of one source current."""

    async def run(self) -> None:
        """Watch the source until cancelled."""

    async def wait_for_attempt(self) -> None:
        """Return after the first response or the first failure."""

    @property
    def synced(self) -> bool:
        """True if the source was read completely at least once."""

    @property
    def trouble(self) -> str | None:
        """Reason why the addresses are not current; None if they are."""

    @property
    def confirmed_at(self) -> float:
        """Monotonic time at which the addresses were last known to be current."""
