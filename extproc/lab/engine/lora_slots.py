"""Where the LoRA adapters of one engine are, and what it costs to bring them where they are needed.

Theory of operation. An adapter is in one of three places:

    on disk         only; reading it takes `lora_load_seconds`
    in host memory  `max_cpu_loras` of them; copying one into a slot takes `lora_activate_seconds`
    in a slot       of `max_loras` on the GPU, and in host memory as well; ready for the batch

Both kinds of room are full in the end, and the least recently used makes room. An adapter that
leaves host memory leaves its slot too, as in vLLM. There both happens in the engine's own
loop, so nothing is computed while an adapter is brought in.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection

from extproc.lab.engine.profile import Profile


class LoraSlots:
    """All methods say how many seconds what they did takes."""

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._host_room = profile.max_cpu_loras or profile.max_loras
        # Both in order of use.
        self._slots: OrderedDict[str, None] = OrderedDict()
        self._host: OrderedDict[str, None] = OrderedDict()

    @property
    def in_slots(self) -> list[str]:
        """Ready for a batch; the least recently used comes first."""
        return list(self._slots)

    @property
    def in_host_memory(self) -> list[str]:
        """Those in slots among them; the least recently used comes first."""
        return list(self._host)

    def use(self, adapters: Collection[str]) -> float:
        """Brings all adapters of a batch, `max_loras` at most, into slots."""
        self._touch(adapters)
        return sum(self._fetch(adapter) for adapter in adapters if adapter not in self._slots)

    def load(self, adapter: str) -> float:
        """Reads an adapter from disk, also where it was, and brings it into a slot.

        As in vLLM it may push out one that the batch uses; the next step brings that one back.
        """
        if not self._profile.max_loras:
            raise ValueError(f"adapter {adapter} is to be loaded, but LoRA is off")
        self._forget(adapter)
        return self._fetch(adapter)

    def _touch(self, adapters: Collection[str]) -> None:
        """Before any is fetched: what this batch uses must not be pushed out for it."""
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
