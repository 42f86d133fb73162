"""A decision: the endpoint that serves a request, and why."""

from __future__ import annotations

from typing import NamedTuple

from extproc.core.fleet.ejection import Ejected
from extproc.core.fleet.ledger import Lease
from extproc.core.strategies import Prediction, Reason


class Wait(NamedTuple):
    """The course of a request in flow control."""

    seconds: float
    """Time in the queue."""
    priority: int
    """The priority of its class."""
    tenant: str
    """The tenant's name, or a hash of its key; empty if there is none."""


class Decision(NamedTuple):
    """The endpoint of a request; the lease on it is already taken."""

    address: str
    """IP:PORT of the chosen endpoint. After a retry, the lease is on another one."""
    model: str
    adapter: str
    strategy: str
    key: int | None
    reason: Reason
    hops: int
    inflight: int
    """Requests on the endpoint before this one."""
    candidates: int
    """Endpoints that could have served the request."""
    fallback: str | None
    """The address to try if the endpoint refuses."""
    rename: str | None
    """The model's name that the body must carry; None if it carries that already."""
    reads_signals: bool
    """True if the strategy uses the load reports of responses."""
    prediction: Prediction | None
    """The expected cache hit; None if the strategy predicts none."""
    ejected: Ejected | None
    """The chosen endpoint's ejection; None if it is in service."""
    requested: str
    """The model's name in the request: its own, an alias, an adapter or a split."""
    answer_as: str | None
    """The name for the response's `model`; None if it keeps the servers' name."""
    response_id: str | None
    """The id that the body must give the response; None if the body stays without."""
    lease: Lease
    wait: Wait | None = None
    """The wait for room on an endpoint; None without flow control."""

    @property
    def changes_body(self) -> bool:
        """True if the servers must get another body than the client sent."""
        return self.rename is not None or self.response_id is not None

    @property
    def destination(self) -> str:
        """The chosen address and the fallback's, in the endpoint picker protocol's form."""
        return self.address if self.fallback is None else f"{self.address},{self.fallback}"
