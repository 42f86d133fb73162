"""PINGs at regular times, and the detection of a peer that does not respond."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

PING_SECONDS = 15.0
"""Time between two PINGs."""

SILENCE_SECONDS = 10.0
"""Time after a PING in which the peer must send something."""

# A timer that is later than this was delayed by the sidecar itself, which may not have read the
# response yet.
_LATE_SECONDS = 1.0


class Ping:
    """A timer that sends a PING, then waits for bytes from the peer."""

    def __init__(self, send: Callable[[], None], silent: Callable[[float], None]) -> None:
        """`silent` receives the seconds for which the peer sent nothing."""
        self._send = send
        self._silent = silent
        self._timer: asyncio.TimerHandle | None = None
        self._received = False

    def start(self) -> None:
        """Send a PING after some time, and then again and again."""
        self._after(PING_SECONDS, self._ping)

    def stop(self) -> None:
        """Send no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def received(self) -> None:
        """Record that the peer sent something."""
        self._received = True

    def acknowledged(self) -> None:
        """Record that the peer responded to the last PING."""
        if self._timer is not None:
            self.start()

    def _ping(self) -> None:
        self._received = False
        self._after(SILENCE_SECONDS, self._check)
        self._send()

    def _check(self) -> None:
        loop, timer = asyncio.get_running_loop(), self._timer
        if self._received:
            self._ping()
        elif timer is not None and loop.time() - timer.when() > _LATE_SECONDS:
            self._after(_LATE_SECONDS, self._check)
        else:
            self.stop()
            self._silent(SILENCE_SECONDS)

    def _after(self, seconds: float, act: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, act)
