"""How busy a process of the load generator is, and how late: its figures are worth no more."""

from __future__ import annotations

import asyncio
from array import array
from dataclasses import dataclass, field
from time import monotonic, process_time

_PROBE_SECONDS = 0.02
_WINDOW_SECONDS = 1.0


@dataclass(frozen=True)
class ProcessLoad:
    """What was seen of one process."""

    busy: float
    """Share of the time in which it used a core."""

    busiest_second: float
    lags: array[float] = field(repr=False)
    """Seconds by which the loop came late to what was due, fifty times a second."""

    cpu_seconds: float = 0.0


class ProcessMonitor:
    """Looks at its own process, from now on."""

    def __init__(self) -> None:
        self._began = self._window_began = monotonic()
        self._cpu = self._window_cpu = process_time()
        self._busiest = 0.0
        self._lags = array("d")

    async def run(self) -> None:
        """Until cancelled."""
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
        """So far."""
        cpu = process_time() - self._cpu
        busy = cpu / max(monotonic() - self._began, 1e-9)
        return ProcessLoad(busy, max(self._busiest, busy), self._lags, cpu)
