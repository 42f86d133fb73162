"""The LoRA adapters that each endpoint probably has in memory.

vLLM's metrics name the adapters of in-flight requests, not the adapters in memory. vLLM keeps the
most recently used ones, as many as fit in a batch (`max_loras`). So the sidecar tracks the uses:
its own as they happen, and others' from the metrics.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from itertools import islice

DEFAULT_SLOTS = 1
"""vLLM's default for `max_loras`, for endpoints that do not report theirs."""


class _Slots:
    """The adapters of one endpoint, the most recently used last."""

    __slots__ = ("active", "adapters", "is_reported", "size")

    def __init__(self) -> None:
        self.size = DEFAULT_SLOTS
        self.is_reported = False
        self.active: frozenset[str] = frozenset()
        self.adapters: OrderedDict[str, None] = OrderedDict()

    def use(self, adapter: str) -> None:
        self.adapters[adapter] = None
        self.adapters.move_to_end(adapter)

    def evict(self) -> None:
        excess = len(self.adapters) - self.size
        # Never the last one used: its request is not in the metrics yet.
        older = islice(self.adapters, max(0, len(self.adapters) - 1))
        idle = (adapter for adapter in older if adapter not in self.active)
        for adapter in list(islice(idle, max(0, excess))):
            del self.adapters[adapter]


class Residency:
    """Adapters by endpoint address."""

    def __init__(self) -> None:
        self._slots: dict[str, _Slots] = {}

    def used(self, address: str, adapter: str) -> None:
        """Record that a request with this adapter was sent to the endpoint."""
        slots = self._slots.setdefault(address, _Slots())
        slots.use(adapter)
        slots.evict()

    def observed(self, address: str, active: frozenset[str], size: int | None) -> None:
        """Record the adapters that an endpoint's requests use, and the slots of a batch.

        The adapters may be more than the slots: waiting requests get a slot later.
        """
        slots = self._slots.setdefault(address, _Slots())
        if size is not None:
            slots.size, slots.is_reported = max(size, 1), True
        slots.active = active
        for adapter in sorted(active):
            slots.use(adapter)
        slots.evict()

    def forget(self, address: str) -> None:
        """Forget an endpoint that left."""
        self._slots.pop(address, None)

    def loaded(self, address: str) -> Collection[str]:
        """Return the adapters that are probably in memory, least recently used first."""
        slots = self._slots.get(address)
        return slots.adapters.keys() if slots else ()

    def has(self, address: str, adapter: str) -> bool:
        """Return True if this adapter is probably in memory."""
        slots = self._slots.get(address)
        return slots is not None and adapter in slots.adapters

    def has_room(self, address: str) -> bool:
        """Return True if one more adapter fits without an eviction."""
        slots = self._slots.get(address)
        return slots is None or len(slots.adapters) < slots.size

    def replaces(self, address: str) -> bool:
        """Return True if loading one more adapter certainly drops another.

        An endpoint that has not reported its slots may have free ones.
        """
        slots = self._slots.get(address)
        return slots is not None and slots.is_reported and not self.has_room(address)
