"""Room: the requests that each endpoint can take now.

An endpoint has room while its requests in flight are below its limit, and its batch has taken the
prompts that were sent before. Parts of the limit stay free for requests that come soon: for higher
classes, for tenants that were served less, and for other sidecars.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from math import inf

from extproc.core.fleet.fleet import Fleet
from extproc.core.flow_control.limits import Limits
from extproc.core.flow_control.model_flow import ModelFlow
from extproc.core.flow_control.queue import PriorityClass
from extproc.core.flow_control.steps import Steps
from extproc.core.routing.catalog import Model

_HOLDBACK = 1 / 16
"""Share of each limit that stays free for classes with a higher priority, and for tenants that
were served less."""
_PEER_SHARE = 1 / 16
"""Share of each limit that stays free for other sidecars, if this one has more than its share."""


class Room:
    """The room on the endpoints of all models; `clock` returns seconds."""

    def __init__(self, fleet: Fleet, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.steps = Steps(clock)
        """The present steps of all endpoints."""
        self.limits = Limits(fleet.signals, self.steps)
        """The learned limits of all endpoints."""
        self.due_at = inf
        """When the next endpoint should get a request that waits for the end of its step."""
        self.loads: Mapping[str, int] = fleet.ledger.loads
        """Requests in flight by address, of this sidecar and those that share its state."""
        self.peers: Callable[[], int] = lambda: 0
        """Returns the number of other sidecars that share their state."""
        self._pressure = fleet.signals.pressure

    def limit(self, flow: ModelFlow, model: Model, address: str) -> float:
        """Return the most requests in flight that an endpoint of a model runs well."""
        spec = model.spec.flow_control
        if spec is not None and spec.max_inflight is not None:
            return float(spec.max_inflight)
        return self.limits.of(address, flow.tokens, flow.to_compute)

    def load(self, address: str) -> float:
        """Return the requests in flight on an endpoint, from all senders."""
        return self.loads.get(address, 0) + self._pressure.others(address)

    def share(self, flow: ModelFlow, model: Model, address: str) -> float:
        """Return the load of an endpoint as a share of its limit; there is room below 1."""
        limit = self.limit(flow, model, address)
        peers = self.peers()
        if peers and flow.own.get(address, 0) * (peers + 1) > limit:
            limit -= max(1.0, limit * _PEER_SHARE)
        return self.load(address) / max(limit, 1.0)

    def saturation(self, flow: ModelFlow, model: Model) -> float:
        """Return the requests in flight and in the queue over the limits of all endpoints.

        More than 1 means that requests wait. Without endpoints, it is the number of requests that
        wait.
        """
        endpoints = model.snapshot.endpoints
        limit = sum(self.limit(flow, model, one.address) for one in endpoints)
        load = sum(self.load(one.address) for one in endpoints)
        return (load + flow.queue.waiting) / max(limit, 1.0)

    def most(self, flow: ModelFlow, group: PriorityClass, tenant: str) -> float:
        """Return the share of the limits that requests of a class and tenant may use."""
        is_first = not flow.is_above(group, self.clock())
        return 1.0 if is_first and not group.line.tenants.is_ahead(tenant) else 1 - _HOLDBACK

    def takes_prompt(
        self, flow: ModelFlow, model: Model, address: str, *, is_shared: bool = True
    ) -> bool:
        """Return True if an endpoint may get another prompt for its next step.

        `is_shared` means that other classes or tenants are active.
        """
        spec = model.spec.flow_control
        if spec is not None and spec.max_inflight is not None:
            return True
        now = self.clock()
        if is_shared and flow.queue.waiting:
            until = self.steps.of(address).took(now)
            if until is not None:
                self.limits.prompts.taken(address, until)
        return self.limits.takes_prompt(address, flow.to_compute, now, is_shared=is_shared)

    def due(self, model: Model, shares: Mapping[str, float]) -> Set[str]:
        """Return the endpoints that should get a request although better ones may come.

        The others have no room for it, or should get it shortly before their present steps end.
        """
        spec = model.spec.flow_control
        if spec is not None and spec.max_inflight is not None:
            return shares.keys()
        now = self.clock()
        dues = self.steps.due({one for one, share in shares.items() if share < 1 - _HOLDBACK})
        later = {one: at for one, at in dues.items() if at > now and self.load(one)}
        self.due_at = min(self.due_at, min(later.values(), default=inf))
        due = dues.keys() - later.keys()
        if len(shares) == 1:
            return due
        opened = {one for one, share in shares.items() if share < 1}
        prompts = self.limits.prompts
        may = {one for one in due if self.load(one) and prompts.is_one_enough(one)}
        return due - self.steps.kept_free(may & opened, opened)

    def keep_only(self, addresses: Iterable[str]) -> None:
        """Forget all other endpoints."""
        kept = frozenset(addresses)
        self.limits.keep_only(kept)
        self.steps.keep_only(kept)

    def open_share(self, flow: ModelFlow, model: Model, address: str, *, is_shared: bool) -> float:
        """Return the same as `share`, but 1 or more if the endpoint may get no prompt now."""
        share = self.share(flow, model, address)
        if share >= 1 or self.takes_prompt(flow, model, address, is_shared=is_shared):
            return share
        return 1.0
