"""A dispatched request, which counts for its tenant until it ends."""

from __future__ import annotations

from collections.abc import Callable

from extproc.core.fleet.ledger import Lease
from extproc.core.flow_control.model_flow import ModelFlow
from extproc.core.flow_control.queue import PriorityClass
from extproc.core.flow_control.room import Room

_RESPONSE_TOKENS_PER_SECOND = 30.0
_RESPONSE_WEIGHT = 2.0
"""A token of a response costs about as much as two of a prompt, as in VTC."""


class Claim:
    """Listens to one request's lease."""

    __slots__ = ("_at", "_flow", "_group", "_inflight", "_room", "_tenant", "_wake", "address")

    def __init__(
        self,
        flow: ModelFlow,
        room: Room,
        wake: Callable[[], None],
        group: PriorityClass,
        tenant: str,
        address: str,
    ) -> None:
        self._flow = flow
        self._room = room
        self._wake = wake
        self._group = group
        self._tenant = tenant
        self._at = room.clock()
        self._inflight = room.loads.get(address, 0)
        self.address = address

    def began(self, lease: Lease) -> None:
        """Learn from the time to the response."""
        if lease.endpoint.address == self.address:
            seconds = self._room.clock() - self._at
            self._room.limits.responded(self.address, seconds, self._inflight)

    def ended(self, lease: Lease) -> None:
        """Charge the response, and dispatch what there is room for now."""
        now = self._room.clock()
        tokens = (now - self._at) * _RESPONSE_TOKENS_PER_SECOND * _RESPONSE_WEIGHT
        self._group.line.tenants.ended(self._tenant, tokens)
        self._flow.ended(self.address)
        served = lease.endpoint.address == self.address  # otherwise another one did on a retry
        if served:
            self._room.limits.prompts.step_ended(self.address, now)
        if self._flow.queue.waiting:
            if served:
                self._room.steps.of(self.address).ended(now)
            self._wake()
