"""A request that waits for room on an endpoint."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from extproc.core.fleet.subset import Subset
from extproc.core.request.blocks import BLOCK_BYTES
from extproc.core.request.refusals import Refusal
from extproc.core.routing.decision import Decision
from extproc.core.routing.resolved_request import ResolvedRequest

Released = Callable[[Decision | Refusal], None]
"""Receives the outcome of a request that waited, once."""


class Arrival(NamedTuple):
    """The properties of a request that determine its order."""

    objective: str = ""
    """The value of the objective header."""
    tenant: str = ""
    """The tenant's name, or a hash of its key; empty if there is none."""
    tokens: float = 1.0
    """Estimated tokens of the prompt."""
    timeout: float | None = None
    """Seconds after which the client does not want the response; None if it does not say."""


class Lane(NamedTuple):
    """Requests that the same endpoints can serve."""

    adapter: str = ""
    subset: Subset | None = None


class Waiter:
    """One waiting request."""

    __slots__ = (
        *("ahead", "arrival", "at", "crowd", "deadline", "group", "homes", "is_dropped"),
        *("keeps_body", "lane", "mark", "number", "released", "resolved"),
    )

    def __init__(
        self,
        resolved: ResolvedRequest,
        arrival: Arrival,
        released: Released,
        at: float,
        deadline: float,
    ) -> None:
        self.resolve(resolved)
        self.arrival = arrival
        self.released = released
        self.at = at
        """When it began to wait, in seconds."""
        self.deadline = deadline
        """When it is refused."""
        self.group = ""
        """The name of its priority class; `Queue.add` sets it."""
        self.homes: tuple[str, ...] = ()
        """The endpoints where it is warm; empty if it does not matter which endpoint serves it."""
        self.keeps_body = True
        """True if the body can still be changed."""
        self.number = 0
        """Its position in the order of arrival."""
        self.ahead = 0
        """The number of requests of its class that waited when it came."""
        self.mark = 0
        """The number of requests that had left its class's queue when it came."""
        self.is_dropped = False
        """True if it no longer waits."""

    def resolve(self, resolved: ResolvedRequest) -> None:
        """Take the resolved request, at the beginning or after another model took its name."""
        self.resolved = resolved
        self.lane = Lane(resolved.adapter, resolved.subset)
        self.crowd = resolved.model.strategy.crowd

    @property
    def is_warm_everywhere(self) -> bool:
        """True if its prompt is shorter than a block, so that no cache can have any of it."""
        prompt = self.resolved.prompt
        return not self.homes and prompt is not None and prompt.bytes < BLOCK_BYTES
