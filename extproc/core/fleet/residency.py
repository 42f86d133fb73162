"""Which LoRA adapters an endpoint probably has in memory.

vLLM's metrics name the adapters of requests in flight, not those it keeps: an
adapter that was just used is warm, and nothing says so. It keeps the most recently
used ones, as many as a batch can have (`max_loras`), so whoever remembers the
uses, its own at once and others' from the metrics, knows which they are.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from itertools import islice

DEFAULT_SLOTS = 1
"""vLLM's default for `max_loras`, for endpoints that have not told theirs."""


class _Slots:
    """The adapters of one endpoint, the most recently used last."""

    __slots__ = ("active", "adapters", "size")

    def __init__(self) -> None:
        self.size = DEFAULT_SLOTS
        self.active: frozenset[str] = frozenset()
        self.adapters: OrderedDict[str, None] = OrderedDict()

    def use(self, adapter: str) -> None:
        self.adapters[adapter] = None
        self.adapters.move_to_end(adapter)

    def evict(self) -> None:
        excess = len(self.adapters) - self.size
        # Never the last one used: its request is on the way, and no reading knows of it yet.
        older = islice(self.adapters, max(0, len(self.adapters) - 1))
        idle = (adapter for adapter in older if adapter not in self.active)
        for adapter in list(islice(idle, max(0, excess))):
            del self.adapters[adapter]


class Residency:
    """Adapters by endpoint address."""

    def __init__(self) -> None:
        self._slots: dict[str, _Slots] = {}

    def used(self, address: str, adapter: str) -> None:
        """A request that needs this adapter goes there."""
        slots = self._slots.setdefault(address, _Slots())
        slots.use(adapter)
        slots.evict()

    def observed(self, address: str, active: frozenset[str], size: int | None) -> None:
        """An endpoint says which adapters its requests use, and how many a batch can have.

        They may be more than fit: those that wait for a slot will have one there.
        """
        slots = self._slots.setdefault(address, _Slots())
        if size is not None:
            slots.size = max(size, 1)
        slots.active = active
        for adapter in sorted(active):
            slots.use(adapter)
        slots.evict()

    def forget(self, address: str) -> None:
        """The endpoint has left, and its memory with it."""
        self._slots.pop(address, None)

    def loaded(self, address: str) -> Collection[str]:
        """The adapters that are probably there, the least recently used first."""
        slots = self._slots.get(address)
        return slots.adapters.keys() if slots else ()

    def has(self, address: str, adapter: str) -> bool:
        """Whether this adapter is probably there."""
        slots = self._slots.get(address)
        return slots is not None and adapter in slots.adapters

    def has_room(self, address: str) -> bool:
        """Whether one more would fit without driving another out."""
        slots = self._slots.get(address)
        return slots is None or len(slots.adapters) < slots.size
