"""The CPU load of a process of the load generator, and the delay of its event loop."""

from __future__ import annotations

import asyncio
from array import array
from dataclasses import dataclass, field
from time import monotonic, process_time

_PROBE_SECONDS = 0.02
_WINDOW_SECONDS = 1.0


@dataclass(frozen=True)
class ProcessLoad:
    """The load of one process."""

    busy: float
    """CPU time as a share of the elapsed time."""

    busiest_second: float
    lags: array[float] = field(repr=False)
    """Delays of the event loop in seconds, sampled fifty times per second."""

    cpu_seconds: float = 0.0


class ProcessMonitor:
    """Monitor of its own process, from its creation on."""

    def __init__(self) -> None:
        self._began = self._window_began = monotonic()
        self._cpu = self._window_cpu = process_time()
        self._busiest = 0.0
        self._lags = array("d")

    async def run(self) -> None:
        """Sample until cancelled."""
        while True:
            due = monotonic() + _PROBE_SECONDS
            await asyncio.sleep(_PROBE_SECONDS)
            now = monotonic()
            self._lags.append(max(0.0, now - due))
            if now - self._window_began >= _WINDOW_SECONDS:
                self._close_window(now)

    def _close_window(self, now: float) -> None:
        cpu = process_time()
        share = (cpu - self._window_cpu) / (now - self._window_began)
        self._busiest = max(self._busiest, share)
        self._window_began, self._window_cpu = now, cpu

    def seen(self) -> ProcessLoad:
        """Return the load so far."""
        cpu = process_time() - self._cpu
        busy = cpu / max(monotonic() - self._began, 1e-9)
        return ProcessLoad(busy, max(self._busiest, busy), self._lags, cpu)
