"""Runs the flow control on the event loop, after changes and regularly while requests wait."""

from __future__ import annotations

import asyncio

from extproc.core.flow_control.flow_control import TICK_SECONDS, FlowControl


class Dispatcher:
    """The timers of the flow control."""

    def __init__(self, flow: FlowControl) -> None:
        self._flow = flow
        self._loop = asyncio.get_running_loop()
        self._is_due = False
        self._tick: asyncio.TimerHandle | None = None
        flow.wake = self._wake

    def close(self) -> None:
        """Stop the timers."""
        self._flow.wake = _do_nothing
        if self._tick is not None:
            self._tick.cancel()

    def _wake(self) -> None:
        """Run the flow control in the next turn of the loop."""
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        self._is_due = False
        try:
            if self._flow.run():
                self._wake()
        finally:
            # An error with one request must not stop the others.
            if self._flow.waiting:
                self._run_later()

    def _run_later(self) -> None:
        """Run the flow control at the next tick, or earlier if a request is due."""
        if self._tick is not None:
            self._tick.cancel()
        seconds = min(TICK_SECONDS, self._flow.due_at - self._flow.clock())
        self._tick = self._loop.call_later(seconds, self._on_tick)

    def _on_tick(self) -> None:
        self._tick = None
        self._run()


def _do_nothing() -> None:
    """Replace `wake` when the sidecar is closed."""
