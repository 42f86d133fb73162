"""The LoRA adapters of one engine: their locations, and the time to load them.

An adapter is in one of three locations:

    on disk         only there; reading it takes `lora_load_seconds`
    in host memory  at most `max_cpu_loras`; copying one into a slot takes `lora_activate_seconds`
    in a slot       at most `max_loras`, on the GPU and in host memory; ready for the batch

If host memory or the slots are full, the least recently used adapter is dropped. As in vLLM, an
adapter that leaves host memory also leaves its slot. vLLM loads adapters in the loop of its engine,
so the engine computes nothing during that time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection

from extproc.lab.engine.profile import Profile


class LoraSlots:
    """The slots and the host memory; methods that load return the seconds that it takes."""

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._host_room = profile.max_cpu_loras or profile.max_loras
        # Both are in order of use, the least recently used first.
        self._slots: OrderedDict[str, None] = OrderedDict()
        self._host: OrderedDict[str, None] = OrderedDict()

    @property
    def in_slots(self) -> list[str]:
        """Adapters in slots, the least recently used first."""
        return list(self._slots)

    @property
    def in_host_memory(self) -> list[str]:
        """Adapters in host memory, including those in slots, the least recently used first."""
        return list(self._host)

    def use(self, adapters: Collection[str]) -> float:
        """Load all adapters of a batch, at most `max_loras`, into slots."""
        self._touch(adapters)
        return sum(self._fetch(adapter) for adapter in adapters if adapter not in self._slots)

    def load(self, adapter: str) -> float:
        """Read an adapter from disk, even if it is in memory, and load it into a slot.

        As in vLLM, it may replace an adapter of the batch; the next step loads that one again.
        """
        if not self._profile.max_loras:
            raise ValueError(f"adapter {adapter} cannot be loaded: LoRA is off")
        self._forget(adapter)
        return self._fetch(adapter)

    def _touch(self, adapters: Collection[str]) -> None:
        """Mark the adapters as used, so that none of them is dropped to load another."""
        for adapter in adapters:
            if adapter in self._host:
                self._host.move_to_end(adapter)
            if adapter in self._slots:
                self._slots.move_to_end(adapter)

    def _fetch(self, adapter: str) -> float:
        seconds = self._profile.lora_activate_seconds
        if adapter not in self._host:
            seconds += self._profile.lora_load_seconds
            self._read(adapter)
        if len(self._slots) == self._profile.max_loras:
            self._slots.popitem(last=False)
        self._slots[adapter] = None
        return seconds

    def _read(self, adapter: str) -> None:
        if len(self._host) == self._host_room:
            self._forget(next(iter(self._host)))
        self._host[adapter] = None

    def _forget(self, adapter: str) -> None:
        self._host.pop(adapter, None)
        self._slots.pop(adapter, None)
