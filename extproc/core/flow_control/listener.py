"""Receives dispatches and refusals of models with flow control, for metrics."""

from __future__ import annotations

from typing import Protocol


class FlowListener(Protocol):
    """Receives the dispatches and refusals."""

    def dispatched(self, model: str, group: str, waited: float) -> None:
        """Record a request that was dispatched after this number of seconds."""

    def refused(self, model: str, reason: str) -> None:
        """Record a refusal: queue_full, queue_timeout, deadline, evicted, draining."""


class NoListener:
    """Ignores what happens to requests."""

    def dispatched(self, model: str, group: str, waited: float) -> None:
        pass

    def refused(self, model: str, reason: str) -> None:
        pass
