"""Flow control: the decision of a request is delayed until an endpoint has room.

    admit     -> a decision at once, if nothing waits and an endpoint has room
              -> else a waiter; its outcome comes through its `released` function
    run       -> dispatches the requests that there is room for, and refuses those that are too late

A request takes its lease when it is dispatched, with the state of the fleet at that time. While an
endpoint has room and nothing waits, the strategy chooses freely among all endpoints, unless
`maxInflight` is configured. So flow control changes nothing without an overload.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice
from math import ceil
from typing import Protocol

from extproc.core.fleet.endpoint import Snapshot
from extproc.core.fleet.ledger import Lease
from extproc.core.flow_control.limits import Limits
from extproc.core.flow_control.line import OpenEndpoints
from extproc.core.flow_control.queue import DEFAULT_CLASS, PriorityClass, Queue
from extproc.core.flow_control.rate import Rate
from extproc.core.flow_control.waiter import Arrival, Released, Waiter
from extproc.core.request.refusals import ModelNotFound, QueueFull, QueueTimeout, Refusal
from extproc.core.routing.catalog import Catalog, Model
from extproc.core.routing.decision import Decision, Wait
from extproc.core.routing.resolved_request import ResolvedRequest
from extproc.core.routing.router import Router
from extproc.core.schema import ClassSpec, FlowControlSpec

TICK_SECONDS = 0.05
"""Interval of runs while requests wait: deadlines pass, limits change, and the requests of other
sidecars end."""

_MOST_AT_ONCE = 64
"""Requests of a model that one run dispatches or refuses, so that others can be decided in
between."""

_HOLDBACK = 1 / 16
"""Share of each limit that stays free for classes with a higher priority."""
_RECENT_SECONDS = 60.0
"""Time after its last request for which that share stays free for a class."""

_PEER_SHARE = 1 / 16
"""Share of each limit that stays free for other sidecars, if this one has more than its share."""

_RESPONSE_TOKENS_PER_SECOND = 30.0
_RESPONSE_WEIGHT = 2.0
"""A token of a response costs about as much as two of a prompt, as in VTC."""

_NO_OBJECTIVES: Mapping[str, int] = {}

_LONGEST_RETRY_SECONDS = 300


class FlowListener(Protocol):
    """Receives what happens to requests, for metrics."""

    def dispatched(self, model: str, group: str, waited: float) -> None:
        """Record a request that was dispatched after this number of seconds."""

    def refused(self, model: str, reason: str) -> None:
        """Record a refusal: queue_full, queue_timeout, deadline, evicted, draining."""


class _NoListener:
    """Ignores what happens to requests."""

    def dispatched(self, model: str, group: str, waited: float) -> None:
        pass

    def refused(self, model: str, reason: str) -> None:
        pass


_NO_LISTENER = _NoListener()


class _Claim:
    """A dispatched request, which counts for its tenant until it ends."""

    __slots__ = ("_at", "_flow", "_group", "_inflight", "_tenant", "address")

    def __init__(
        self, flow: _ModelFlow, address: str, group: PriorityClass, tenant: str, inflight: int
    ) -> None:
        self._flow = flow
        self._group = group
        self._tenant = tenant
        self._inflight = inflight
        self._at = flow.control.clock()
        self.address = address

    def began(self, lease: Lease) -> None:
        """Learn from the time to the response."""
        seconds = self._flow.control.clock() - self._at
        if lease.endpoint.address == self.address:
            self._flow.control.limits.responded(self.address, seconds, self._inflight)

    def ended(self, _lease: Lease) -> None:
        """Charge the response, and dispatch what there is room for now."""
        flow = self._flow
        seconds = flow.control.clock() - self._at
        tokens = seconds * _RESPONSE_TOKENS_PER_SECOND * _RESPONSE_WEIGHT
        self._group.line.tenants.charge(self._tenant, tokens)
        flow.ended(self.address)


class _ModelFlow:
    """The queue of one model."""

    def __init__(self, control: FlowControl, model: str) -> None:
        self.control = control
        self.model = model
        self.queue = Queue()
        self.rate = Rate()
        self.own: dict[str, int] = {}
        """This sidecar's requests on each endpoint."""
        self.tokens = 0.0
        """Mean tokens of the recent requests."""
        self.seen: dict[str, tuple[int, float]] = {}
        """The priority of each class, and when its last request came."""

    def ended(self, address: str) -> None:
        """Record the end of a request."""
        left = self.own[address] - 1
        if left:
            self.own[address] = left
        else:
            del self.own[address]
        if self.queue.waiting:
            self.control.wake()


class FlowControl:
    """The flow control of all models that are configured for it; `clock` returns seconds."""

    def __init__(self, router: Router, clock: Callable[[], float]) -> None:
        self.router = router
        self.clock = clock
        self.limits = Limits(router.fleet.signals)
        """The learned limits of all endpoints."""
        self.wake: Callable[[], None] = lambda: None
        """Function that calls `run` soon."""
        self.peers: Callable[[], int] = lambda: 0
        """Returns the number of other sidecars that share their state."""
        self._objectives: Mapping[str, Mapping[str, int]] = {}
        self.listener: FlowListener = _NO_LISTENER
        self._flows: dict[str, _ModelFlow] = {}
        self._loads = router.fleet.ledger.loads
        self._pressure = router.fleet.signals.pressure
        self._forced: list[Waiter] = []
        self._is_draining = False
        router.subscribe(self._published)

    @property
    def waiting(self) -> int:
        """Number of requests that wait."""
        return sum(flow.queue.waiting for flow in self._flows.values())

    def admit(
        self, resolved: ResolvedRequest, arrival: Arrival, released: Released
    ) -> Decision | Waiter:
        """Decide a request of a model with flow control, or let it wait.

        Raises Refusal if it can do neither. `released` gets the outcome of a request that waits.
        """
        spec = resolved.model.spec.flow_control
        assert spec is not None
        flow = self._flow(resolved.model.spec.name)
        group, limits = self._group(flow, spec, arrival.objective)
        now = self.clock()
        flow.seen[group.name] = group.priority, now
        flow.tokens += 0.02 * (arrival.tokens - flow.tokens) if flow.tokens else arrival.tokens
        if not flow.queue.waiting:
            has_room = self._has_room(flow, resolved, group)
            if has_room:
                # A learned limit is an estimate, and the strategy knows the load as well.
                among = None if spec.max_inflight is None else frozenset(has_room)
                return self._dispatch(flow, resolved, arrival, group, now, now, among)
        seconds = spec.max_wait_seconds
        if limits is not None and limits.max_wait_seconds is not None:
            seconds = limits.max_wait_seconds
        if arrival.timeout is not None:
            self._check_deadline(flow, group, arrival.timeout, now)
            seconds = min(seconds, arrival.timeout)
        self._make_space(flow, spec, group, limits)
        waiter = Waiter(resolved, arrival, released, now, now + seconds)
        waiter.homes = self.router.homes(resolved)
        flow.queue.add(waiter, group)
        self.wake()
        return waiter

    def cancel(self, waiter: Waiter) -> None:
        """Forget a waiting request, because its client has left. A second call does nothing."""
        self._flows[waiter.resolved.model.spec.name].queue.remove(waiter)

    def force(self, waiter: Waiter) -> None:
        """Dispatch a request soon, with or without room, because its body is too large to hold."""
        self._forced.append(waiter)
        self.wake()

    def set_objectives(self, priorities: Mapping[str, Mapping[str, int]]) -> None:
        """Take priorities by model and by the name of an InferenceObjective."""
        self._objectives = priorities
        self._published(self.router.catalog)

    def run(self) -> bool:
        """Dispatch and refuse what is due. Return True if there is more to dispatch at once."""
        now = self.clock()
        is_more = False
        forced, self._forced = self._forced, []
        for waiter in forced:
            if not waiter.is_dropped:
                self._release(self._flows[waiter.resolved.model.spec.name], waiter, None)
        for flow in list(self._flows.values()):
            late = 0
            for waiter in islice(flow.queue.expired(now), _MOST_AT_ONCE):
                self._refuse(flow, waiter, self._timeout(flow, waiter, now), "queue_timeout")
                late += 1
            if late == _MOST_AT_ONCE:
                is_more = True
            elif flow.queue.waiting:
                is_more |= self._run(flow, now)
        return is_more

    def drain(self) -> None:
        """Refuse all waiting requests, because the sidecar stops."""
        self._is_draining = True
        for flow in self._flows.values():
            for waiter in flow.queue.everyone():
                name = waiter.resolved.model.spec.name
                refusal = QueueTimeout(name, 1, "the router is shutting down")
                self._refuse(flow, waiter, refusal, "draining")

    def queue_of(self, model: str) -> Queue:
        """Return a model's queue, for reading."""
        return self._flow(model).queue

    def limit(self, model: Model, address: str) -> float:
        """Return the most requests in flight that an endpoint of a model runs well."""
        spec = model.spec.flow_control
        if spec is not None and spec.max_inflight is not None:
            return float(spec.max_inflight)
        return self.limits.of(address, self._flow(model.spec.name).tokens)

    def load(self, address: str) -> float:
        """Return the requests in flight on an endpoint, from all senders."""
        return self._loads.get(address, 0) + self._pressure.others(address)

    def saturation(self, model: Model) -> float:
        """Return the requests in flight and in the queue over the limits of all endpoints.

        More than 1 means that requests wait. Without endpoints, it is the number of requests that
        wait.
        """
        endpoints = model.snapshot.endpoints
        limit = sum(self.limit(model, one.address) for one in endpoints)
        load = sum(self.load(one.address) for one in endpoints)
        return (load + self._flow(model.spec.name).queue.waiting) / max(limit, 1.0)

    def _flow(self, model: str) -> _ModelFlow:
        flow = self._flows.get(model)
        if flow is None:
            flow = self._flows[model] = _ModelFlow(self, model)
        return flow

    def _group(
        self, flow: _ModelFlow, spec: FlowControlSpec, objective: str
    ) -> tuple[PriorityClass, ClassSpec | None]:
        """Return the class of a request, and its configuration if there is one.

        Names that are not configured count as the default class, because clients choose them.
        """
        priority = self._priority(flow, spec, objective)
        if priority is not None:
            return flow.queue.group(objective, priority), spec.by_name.get(objective)
        limits = spec.by_name.get(DEFAULT_CLASS)
        return flow.queue.group(DEFAULT_CLASS, limits.priority if limits else 0), limits

    def _priority(self, flow: _ModelFlow, spec: FlowControlSpec, name: str) -> int | None:
        """Return the priority of a class; None if there is no such class."""
        limits = spec.by_name.get(name)
        if limits is not None:
            return limits.priority
        return self._objectives.get(flow.model, _NO_OBJECTIVES).get(name)

    def _has_room(
        self, flow: _ModelFlow, resolved: ResolvedRequest, group: PriorityClass
    ) -> list[str]:
        """Return the endpoints with room for a request; the first one if limits are learned."""
        model, held = resolved.model, self._held_back(flow, group)
        snapshot = self.router.without_ejected(resolved).snapshot
        open_ = (
            one.address
            for one in snapshot.eligible(resolved.adapter)
            if self._share(flow, model, one.address) < held
        )
        spec = model.spec.flow_control
        return list(open_ if spec and spec.max_inflight else islice(open_, 1))

    def _share(self, flow: _ModelFlow, model: Model, address: str) -> float:
        """Return the load of an endpoint as a share of its limit; there is room below 1."""
        limit = self.limit(model, address)
        peers = self.peers()
        if peers and flow.own.get(address, 0) * (peers + 1) > limit:
            limit -= max(1.0, limit * _PEER_SHARE)
        return self.load(address) / max(limit, 1.0)

    def _held_back(self, flow: _ModelFlow, group: PriorityClass) -> float:
        """Return the share of the limits that requests of a class may use."""
        since = self.clock() - _RECENT_SECONDS
        is_higher = any(p > group.priority and at > since for p, at in flow.seen.values())
        return 1 - _HOLDBACK if is_higher else 1.0

    def _check_deadline(
        self, flow: _ModelFlow, group: PriorityClass, seconds: float, now: float
    ) -> None:
        """Refuse a request that will probably be too late. Raises QueueTimeout."""
        rate = flow.rate.of(now)
        wait = flow.queue.ahead(group.priority) / rate if rate else 0.0
        if wait > seconds or seconds <= 0:
            model = flow.model
            self.listener.refused(model, "deadline")
            why = f"the wait of about {ceil(wait)} s is longer than the request's timeout"
            raise QueueTimeout(model, self._retry_after(flow, now), why)

    def _make_space(
        self,
        flow: _ModelFlow,
        spec: FlowControlSpec,
        group: PriorityClass,
        limits: ClassSpec | None,
    ) -> None:
        """Make space for a request in the queue. Raises QueueFull, or QueueTimeout in a drain."""
        now, name = self.clock(), flow.model
        if self._is_draining:
            self.listener.refused(name, "draining")
            raise QueueTimeout(name, 1, "the router is shutting down")
        most = None if limits is None else limits.max_queued
        is_class_full = most is not None and group.line.waiting >= most
        if not is_class_full and flow.queue.waiting < spec.max_queued:
            return
        shed = None if is_class_full else flow.queue.sheddable(group.priority)
        retry_after = self._retry_after(flow, now)
        if shed is None:
            self.listener.refused(name, "queue_full")
            raise QueueFull(name, retry_after)
        self._refuse(flow, shed, QueueFull(name, retry_after, evicted=True), "evicted")

    def _run(self, flow: _ModelFlow, now: float) -> bool:
        """Dispatch requests of a model while there is room. Return True if there is more to do."""
        model = self.router.catalog.models.get(flow.model)
        if model is None or model.spec.flow_control is None:
            for waiter in flow.queue.everyone()[:_MOST_AT_ONCE]:
                self._release(flow, waiter, None)
            return flow.queue.waiting > 0
        available = self.router.available(model)
        shares = {one.address: self._share(flow, model, one.address) for one in available.endpoints}
        for _ in range(_MOST_AT_ONCE):
            picked = self._pick(flow, available, shares, now)
            if picked is None:
                return False
            address = self._release(flow, *picked)
            if address in shares:
                shares[address] = self._share(flow, model, address)
        return flow.queue.waiting > 0

    def _pick(
        self, flow: _ModelFlow, available: Snapshot, shares: Mapping[str, float], now: float
    ) -> tuple[Waiter, frozenset[str]] | None:
        """Return the next request and the endpoints that it may go to."""
        for group in flow.queue.in_order():
            held = self._held_back(flow, group)
            has_room = {address: share for address, share in shares.items() if share < held}
            if has_room:
                opened = OpenEndpoints(has_room, available)
                picked = group.line.pick(opened, shares, now)
                if picked is not None:
                    return picked[0], frozenset(picked[1])
        return None

    def _release(self, flow: _ModelFlow, waiter: Waiter, among: frozenset[str] | None) -> str:
        """Dispatch a waiting request to one of these endpoints, or to any. Return the address."""
        flow.queue.remove(waiter)
        group = flow.queue.classes[waiter.group]
        try:
            resolved = self.router.current(waiter.resolved)
            now = self.clock()
            outcome: Decision | Refusal = self._dispatch(
                flow, resolved, waiter.arrival, group, waiter.at, now, among
            )
        except Refusal as refusal:
            outcome = refusal
        waiter.released(outcome)
        return outcome.address if isinstance(outcome, Decision) else ""

    def _dispatch(
        self,
        flow: _ModelFlow,
        resolved: ResolvedRequest,
        arrival: Arrival,
        group: PriorityClass,
        since: float,
        now: float,
        among: frozenset[str] | None = None,
    ) -> Decision:
        """Decide a request and record it. Raises Refusal."""
        decision = self.router.decide(resolved, among)
        address = decision.address
        flow.own[address] = flow.own.get(address, 0) + 1
        group.line.tenants.charge(arrival.tenant, arrival.tokens)
        claim = _Claim(flow, address, group, arrival.tenant, self._loads[address])
        decision.lease.listener = claim
        flow.rate.add(now)
        self.listener.dispatched(decision.model, group.name, now - since)
        wait = Wait(now - since, group.priority, arrival.tenant)
        return decision._replace(wait=wait)

    def _refuse(self, flow: _ModelFlow, waiter: Waiter, refusal: Refusal, reason: str) -> None:
        flow.queue.remove(waiter)
        self.listener.refused(waiter.resolved.model.spec.name, reason)
        waiter.released(refusal)

    def _timeout(self, flow: _ModelFlow, waiter: Waiter, now: float) -> QueueTimeout:
        name = waiter.resolved.model.spec.name
        why = f"the request waited {now - waiter.at:.1f} s"
        return QueueTimeout(name, self._retry_after(flow, now), why)

    def _retry_after(self, flow: _ModelFlow, now: float) -> int:
        """Return the estimated seconds until the present queue is dispatched, 1 or more."""
        rate = flow.rate.of(now)
        if rate:
            seconds = flow.queue.waiting / rate
        else:
            oldest = flow.queue.oldest()
            seconds = 0.0 if oldest is None else now - oldest.at
        return max(1, min(_LONGEST_RETRY_SECONDS, ceil(seconds)))

    def _published(self, catalog: Catalog) -> None:
        """Take a new catalog: forget the endpoints that left, and dispatch to those that came."""
        models = [one for one in catalog.models.values() if one.spec.flow_control is not None]
        self.limits.keep_only(e.address for one in models for e in one.snapshot.endpoints)
        if self.waiting:
            for model in models:
                self._revise(self._flow(model.spec.name), model)
            self.wake()

    def _revise(self, flow: _ModelFlow, model: Model) -> None:
        """Change priorities, and refuse requests for adapters that were removed.

        Without endpoints, an adapter that was found on them may come back.
        """
        spec = model.spec.flow_control
        assert spec is not None
        for name, group in flow.queue.classes.items():
            group.priority = self._priority(flow, spec, name) or 0
            if name in flow.seen:
                flow.seen[name] = group.priority, flow.seen[name][1]
        if not model.snapshot.endpoints:
            return
        for waiter in flow.queue.everyone():
            adapter = waiter.resolved.adapter
            if adapter and not model.has(adapter):
                flow.queue.remove(waiter)
                known = self.router.catalog.known()
                waiter.released(ModelNotFound(waiter.resolved.requested, known))
