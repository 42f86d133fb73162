"""What there is to choose from: endpoints, and an immutable snapshot of a model's."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from extproc.core.ring import Ring


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
    """The ready endpoints of one model at one moment, with their ring."""

    endpoints: tuple[Endpoint, ...]
    ring: Ring[Endpoint]
    _by_adapter: dict[str, tuple[Endpoint, ...]] = field(repr=False)

    @classmethod
    def of(cls, endpoints: Iterable[Endpoint], replication: int = 256) -> Snapshot:
        """The snapshot of these endpoints, the same for every order of arrival."""
        ordered = tuple(sorted(endpoints, key=lambda endpoint: endpoint.name))
        adapters = {adapter for endpoint in ordered for adapter in endpoint.adapters}
        return cls(
            endpoints=ordered,
            ring=Ring.of({endpoint.name: endpoint for endpoint in ordered}, replication),
            _by_adapter={
                adapter: tuple(e for e in ordered if adapter in e.adapters) for adapter in adapters
            },
        )

    def eligible(self, adapter: str) -> tuple[Endpoint, ...]:
        """The endpoints that can serve a request: all, or those that have its adapter."""
        return self._by_adapter.get(adapter, ()) if adapter else self.endpoints
