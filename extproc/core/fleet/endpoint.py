"""Endpoints, and immutable snapshots of a model's endpoints."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

from extproc.core.fleet.ring import Pause, Ring, no_pause
from extproc.core.fleet.subset import Subset

_MOST_FIRST = 256
"""Results of `Snapshot.first` that a snapshot keeps."""

_MOST_RESTRICTED = 16
"""The same for `Snapshot.restricted`."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One vLLM server that may be routed to."""

    address: str
    """IP:PORT, in the form that Envoy's original-destination cluster reads."""

    name: str
    """The name on the ring: NAMESPACE/POD if discovery knows the pod, else the address."""

    adapters: frozenset[str] = frozenset()
    """LoRA adapters this endpoint serves."""


@dataclass(frozen=True)
class Snapshot:
    """The ready endpoints of one model at one moment, with their ring.

    A snapshot can be restricted to some of its endpoints for one request. The ring stays the same,
    so each prefix keeps its home endpoint; the walk skips endpoints that are not allowed.
    """

    endpoints: tuple[Endpoint, ...]
    ring: Ring[Endpoint]
    _by_adapter: Mapping[str, tuple[Endpoint, ...]] = field(repr=False)
    _subset: Subset | None = None
    _first: dict[tuple[int, str, int], tuple[str, ...]] = field(
        default_factory=dict, repr=False, compare=False
    )
    _restricted: dict[Subset, Snapshot] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(
        cls,
        endpoints: Iterable[Endpoint],
        replication: int = 256,
        previous: Snapshot | None = None,
        pause: Pause = no_pause,
    ) -> Snapshot:
        """Return the snapshot of these endpoints, the same for any order of them.

        `previous`, the snapshot to replace, only saves time. `pause` is called after each step.
        """
        ordered = _in_order(endpoints)
        if previous and previous.endpoints == ordered and previous.ring.replication == replication:
            enough = previous.ring.is_whole or pause is no_pause
            if enough:
                return previous
        members = {endpoint.name: endpoint for endpoint in ordered}
        ring = Ring.of(members, replication, previous.ring if previous else None, pause)
        return cls(ordered, ring, _by_adapter(ordered))

    def only(self, endpoints: Iterable[Endpoint]) -> Snapshot:
        """Return the snapshot of those of these endpoints that are on the ring already.

        The ring skips all others, so this costs little.
        """
        kept = _in_order(endpoint for endpoint in endpoints if endpoint.name in self.ring)
        if kept == self.endpoints:
            return self
        ring = self.ring.only({endpoint.name: endpoint for endpoint in kept})
        return Snapshot(kept, ring, _by_adapter(kept))

    def restricted(self, subset: Subset) -> Snapshot:
        """Return the snapshot with only the endpoints that the subset allows.

        The snapshot keeps some results, because gateways repeat a few subsets. Equal subsets get
        the same object, for which strategies keep what they computed of its endpoints.
        """
        found = self._restricted.get(subset)
        if found is None:
            if len(self._restricted) >= _MOST_RESTRICTED:
                self._restricted.clear()
            found = self._restricted[subset] = self._with_only(subset)
        return found

    def _with_only(self, subset: Subset) -> Snapshot:
        allowed = tuple(e for e in self.endpoints if subset.allows(e.address))
        if len(allowed) == len(self.endpoints):
            return self
        return Snapshot(allowed, self.ring, _by_adapter(allowed), subset)

    def eligible(self, adapter: str) -> tuple[Endpoint, ...]:
        """Return the endpoints that can serve a request: all, or those with its adapter."""
        return self._by_adapter.get(adapter, ()) if adapter else self.endpoints

    @property
    def adapters(self) -> Iterable[str]:
        """Adapters that at least one endpoint has."""
        return self._by_adapter.keys()

    def walk(self, key: int, adapter: str) -> Iterator[Endpoint]:
        """Yield the eligible endpoints, each once, clockwise from the key on the ring."""
        eligible = self.eligible(adapter)
        if len(eligible) < 2:
            return iter(eligible)  # as flow control often does; the ring may have 1,000 members
        met = self.ring.walk(key)
        subset = self._subset
        if subset is not None:
            met = filter(lambda endpoint: subset.allows(endpoint.address), met)
        if adapter:
            met = filter(lambda endpoint: adapter in endpoint.adapters, met)
        return met

    def first(self, key: int, adapter: str, number: int) -> tuple[str, ...]:
        """Return the names of the first eligible endpoints after the key.

        The snapshot keeps some results, because requests have few different keys.
        """
        asked = (key, adapter, number)
        found = self._first.get(asked)
        if found is None:
            if len(self._first) >= _MOST_FIRST:
                self._first.clear()
            found = tuple(one.name for one in islice(self.walk(key, adapter), number))
            self._first[asked] = found
        return found

    def among(self, key: int, names: Iterable[str]) -> Iterator[Endpoint]:
        """Yield the endpoints of these names, clockwise from the key on the ring."""
        return self.ring.among(key, names)


def _in_order(endpoints: Iterable[Endpoint]) -> tuple[Endpoint, ...]:
    return tuple(sorted(endpoints, key=lambda endpoint: endpoint.name))


def _by_adapter(endpoints: tuple[Endpoint, ...]) -> dict[str, tuple[Endpoint, ...]]:
    """Return the endpoints of each adapter; the same tuple where all have it."""
    found: dict[str, list[Endpoint]] = {}
    for endpoint in endpoints:
        for adapter in endpoint.adapters:
            found.setdefault(adapter, []).append(endpoint)
    return {
        adapter: endpoints if len(those) == len(endpoints) else tuple(those)
        for adapter, those in found.items()
    }
