"""What there is to choose from: endpoints, and an immutable snapshot of a model's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from extproc.core.fleet.ring import Ring
from extproc.core.fleet.subset import Subset


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One vLLM server that may be routed to."""

    address: str
    """IP:PORT, as Envoy's original-destination cluster reads it."""

    name: str
    """On the ring: NAMESPACE/POD where discovery knows the pod, else the address."""

    adapters: frozenset[str] = frozenset()
    """LoRA adapters this endpoint serves."""


@dataclass(frozen=True)
class Snapshot:
    """The ready endpoints of one model at one moment, with their ring.

    A snapshot can be restricted to some of its endpoints for one request. The ring
    stays as it is, so each prefix keeps its home and its neighbours; the walk
    passes over the others.
    """

    endpoints: tuple[Endpoint, ...]
    ring: Ring[Endpoint]
    _by_adapter: Mapping[str, tuple[Endpoint, ...]] = field(repr=False)
    _subset: Subset | None = None

    @classmethod
    def of(
        cls,
        endpoints: Iterable[Endpoint],
        replication: int = 256,
        previous: Snapshot | None = None,
    ) -> Snapshot:
        """The snapshot of these endpoints, the same for every order of arrival.

        `previous` only saves time: what the snapshot is to replace.
        """
        ordered = tuple(sorted(endpoints, key=lambda endpoint: endpoint.name))
        if previous and previous.endpoints == ordered and previous.ring.replication == replication:
            return previous
        members = {endpoint.name: endpoint for endpoint in ordered}
        ring = Ring.of(members, replication, previous.ring if previous else None)
        return cls(ordered, ring, _by_adapter(ordered))

    def restricted(self, subset: Subset) -> Snapshot:
        """The same, as if only the endpoints that the subset allows were ready."""
        allowed = tuple(e for e in self.endpoints if subset.allows(e.address))
        return Snapshot(allowed, self.ring, _by_adapter(allowed), subset)

    def eligible(self, adapter: str) -> tuple[Endpoint, ...]:
        """The endpoints that can serve a request: all, or those that have its adapter."""
        return self._by_adapter.get(adapter, ()) if adapter else self.endpoints

    @property
    def adapters(self) -> Iterable[str]:
        """The adapters that some endpoint has."""
        return self._by_adapter.keys()

    def walk(self, key: int, adapter: str) -> Iterator[Endpoint]:
        """The eligible endpoints, each once, in the order met on the ring from a key on."""
        met = self.ring.walk(key)
        subset = self._subset
        if subset is not None:
            met = filter(lambda endpoint: subset.allows(endpoint.address), met)
        if adapter:
            met = filter(lambda endpoint: adapter in endpoint.adapters, met)
        return met


def _by_adapter(endpoints: Iterable[Endpoint]) -> dict[str, tuple[Endpoint, ...]]:
    found: dict[str, list[Endpoint]] = {}
    for endpoint in endpoints:
        for adapter in endpoint.adapters:
            found.setdefault(adapter, []).append(endpoint)
    return {adapter: tuple(those) for adapter, those in found.items()}
