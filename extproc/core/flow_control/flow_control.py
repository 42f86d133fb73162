"""Flow control: the decision of a request is delayed until an endpoint has room.

    admit     -> a decision at once, if nothing waits and an endpoint has room
              -> else a waiter; its outcome comes through its `released` function
    run       -> dispatches the requests that there is room for, and refuses those that are too late

A request takes its lease when it is dispatched, with the state of the fleet at that time. While an
endpoint has room and nothing waits, the strategy chooses freely among all endpoints, unless
`maxInflight` is configured. So flow control changes nothing without an overload.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from functools import cache, partial
from itertools import islice
from math import inf

from extproc.core.fleet.endpoint import Snapshot
from extproc.core.flow_control import bounds
from extproc.core.flow_control.claim import Claim
from extproc.core.flow_control.classes import Classes
from extproc.core.flow_control.line import OpenEndpoints
from extproc.core.flow_control.listener import FlowListener, NoListener
from extproc.core.flow_control.model_flow import ModelFlow
from extproc.core.flow_control.queue import PriorityClass
from extproc.core.flow_control.room import Room
from extproc.core.flow_control.waiter import Arrival, Released, Waiter
from extproc.core.request.refusals import ModelChanged, ModelNotFound, QueueFull, Refusal
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


class FlowControl:
    """The flow control of all models that are configured for it; `clock` returns seconds."""

    def __init__(self, router: Router, clock: Callable[[], float]) -> None:
        self.router = router
        self.clock = clock
        self.room = Room(router.fleet, clock)
        """The room on the endpoints."""
        self.wake: Callable[[], None] = lambda: None
        """Function that calls `run` soon."""
        self._classes = Classes()
        self.listener: FlowListener = NoListener()
        self._flows: dict[str, ModelFlow] = {}
        self._forced: list[Waiter] = []
        self._is_draining = False
        router.subscribe(self._published)

    @property
    def due_at(self) -> float:
        """When `run` should be called next, if that is before the next tick; may be infinite."""
        return self.room.due_at

    @property
    def waiting(self) -> int:
        """Number of requests that wait."""
        return sum(flow.queue.waiting for flow in self._flows.values())

    def of(self, model: str) -> ModelFlow:
        """Return the flow of a model."""
        flow = self._flows.get(model)
        if flow is None:
            flow = self._flows[model] = ModelFlow(model)
        return flow

    def admit(
        self, resolved: ResolvedRequest, arrival: Arrival, released: Released
    ) -> Decision | Waiter:
        """Decide a request of a model with flow control, or let it wait.

        Raises Refusal if it can do neither. `released` gets the outcome of a request that waits.
        """
        spec = resolved.model.spec.flow_control
        assert spec is not None
        flow = self.of(resolved.model.spec.name)
        group, limits = self._classes.of(flow, spec, arrival.objective)
        now = self.clock()
        flow.arrived(group, arrival, now)
        if not flow.queue.waiting:
            has_room = self._has_room(flow, resolved, group, arrival.tenant)
            if has_room:
                # A learned limit is an estimate, and the strategy knows the load as well.
                among = None if spec.max_inflight is None else frozenset(has_room)
                return self._dispatch(flow, resolved, arrival, group, now, now, among)
        late = bounds.too_late(flow, group, arrival.timeout, now)
        if late is not None:
            self.listener.refused(flow.model, "deadline")
            raise late
        self._make_space(flow, spec, group, limits)
        deadline = now + bounds.longest_wait(spec, limits, arrival)
        waiter = Waiter(resolved, arrival, released, now, deadline)
        waiter.homes = self.router.homes(resolved)
        flow.queue.add(waiter, group)
        self.wake()
        return waiter

    def most(self, model: Model, objective: str, tenant: str) -> float:
        """Return the share of the limits that a request may use, and change nothing."""
        spec = model.spec.flow_control
        assert spec is not None
        flow = self._flows.get(model.spec.name) or ModelFlow(model.spec.name)
        return self.room.most(flow, self._classes.find(flow, spec, objective), tenant)

    def cancel(self, waiter: Waiter) -> None:
        """Forget a waiting request, because its client has left. A second call does nothing."""
        self._flows[waiter.resolved.model.spec.name].queue.remove(waiter)

    def force(self, waiter: Waiter) -> None:
        """Dispatch a request soon, with or without room, because its body is too large to hold."""
        self._forced.append(waiter)
        self.wake()

    def set_objectives(self, priorities: Mapping[str, Mapping[str, int]]) -> None:
        """Take priorities by model and by the name of an InferenceObjective."""
        self._classes.objectives = priorities
        self._published(self.router.catalog)

    def run(self) -> bool:
        """Dispatch and refuse what is due. Return True if there is more to dispatch at once."""
        now = self.clock()
        self.room.due_at = inf
        is_more = False
        forced, self._forced = self._forced, []
        for waiter in forced:
            if not waiter.is_dropped:
                self._release(self._flows[waiter.resolved.model.spec.name], waiter, None)
        for flow in list(self._flows.values()):
            late = 0
            for waiter in islice(flow.queue.expired(now), _MOST_AT_ONCE):
                self._refuse(flow, waiter, bounds.timed_out(flow, waiter, now), "queue_timeout")
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
                self._refuse(flow, waiter, bounds.shutting_down(flow), "draining")

    def _has_room(
        self, flow: ModelFlow, resolved: ResolvedRequest, group: PriorityClass, tenant: str
    ) -> list[str]:
        """Return the endpoints with room for a request; the first one if limits are learned."""
        room, model = self.room, resolved.model
        most = room.most(flow, group, tenant)
        # Alone, a request waits for the same requests here and in an engine.
        is_shared = flow.is_shared(self.clock())
        snapshot = self.router.without_ejected(resolved).snapshot
        spec = model.spec.flow_control
        all_of_them = spec is not None and spec.max_inflight is not None
        found: list[str] = []
        # No generator expression: compiled code would evaluate it for all endpoints.
        for one in snapshot.eligible(resolved.adapter):
            has_room = room.share(flow, model, one.address) < most
            if has_room and (not is_shared or room.takes_prompt(flow, model, one.address)):
                found.append(one.address)
                if not all_of_them:
                    break
        return found

    def _make_space(
        self,
        flow: ModelFlow,
        spec: FlowControlSpec,
        group: PriorityClass,
        limits: ClassSpec | None,
    ) -> None:
        """Make space for a request in the queue. Raises QueueFull, or QueueTimeout in a drain."""
        if self._is_draining:
            self.listener.refused(flow.model, "draining")
            raise bounds.shutting_down(flow)
        most = None if limits is None else limits.max_queued
        is_class_full = most is not None and group.line.waiting >= most
        if not is_class_full and flow.queue.waiting < spec.max_queued:
            return
        shed = None if is_class_full else flow.queue.sheddable(group.priority)
        retry_after = bounds.retry_after(flow, self.clock())
        if shed is None:
            self.listener.refused(flow.model, "queue_full")
            raise QueueFull(flow.model, retry_after)
        self._refuse(flow, shed, QueueFull(flow.model, retry_after, evicted=True), "evicted")

    def _run(self, flow: ModelFlow, now: float) -> bool:
        """Dispatch requests of a model while there is room. Return True if there is more to do."""
        model = self.router.catalog.models.get(flow.model)
        if model is None:
            for waiter in flow.queue.take(_MOST_AT_ONCE):
                self._move(waiter)
            return True
        if model.spec.flow_control is None:
            for waiter in flow.queue.everyone()[:_MOST_AT_ONCE]:
                self._release(flow, waiter, None)
            return flow.queue.waiting > 0
        available = self.router.available(model)
        room, is_shared = self.room, flow.is_shared(now)
        shares = {
            one.address: room.open_share(flow, model, one.address, is_shared=is_shared)
            for one in available.endpoints
        }
        due = cache(partial(room.due, model, dict(shares)))
        for _ in range(_MOST_AT_ONCE):
            picked = self._pick(flow, available, shares, due, now)
            if picked is None:
                return False
            address = self._release(flow, *picked)
            if address in shares:
                shares[address] = room.open_share(flow, model, address, is_shared=is_shared)
        return flow.queue.waiting > 0

    def _pick(
        self,
        flow: ModelFlow,
        available: Snapshot,
        shares: Mapping[str, float],
        due: Callable[[], Set[str]],
        now: float,
    ) -> tuple[Waiter, frozenset[str]] | None:
        """Return the next request and the endpoints that it may go to.

        `due` returns the endpoints that should get a request now although better ones may come.
        """
        for group in flow.queue.in_order():
            most = self.room.most(flow, group, group.line.tenants.next_name())
            has_room = {address: share for address, share in shares.items() if share < most}
            if most < 1 and has_room:
                has_room = {one: has_room[one] for one in has_room if one in due()}
            if has_room:
                opened = OpenEndpoints(has_room, available)
                picked = group.line.pick(opened, shares, now)
                if picked is not None:
                    return picked[0], self._among(flow, picked[1].keys(), most, now)
        return None

    def _among(self, flow: ModelFlow, opened: Set[str], most: float, now: float) -> frozenset[str]:
        """Return those of the open endpoints that the next request may go to."""
        if most < 1 or len(opened) == 1 or not flow.is_shared(now):
            return frozenset(opened)
        return self.room.steps.soonest(opened, flow.to_compute)

    def _release(self, flow: ModelFlow, waiter: Waiter, among: frozenset[str] | None) -> str:
        """Dispatch a waiting request to one of these endpoints, or to any. Return the address."""
        flow.queue.remove(waiter)
        group = flow.queue.classes[waiter.group]
        try:
            resolved = self.router.current(waiter.resolved)
            outcome: Decision | Refusal = self._dispatch(
                flow, resolved, waiter.arrival, group, waiter.at, self.clock(), among
            )
        except Refusal as refusal:
            outcome = refusal
        waiter.released(outcome)
        return outcome.address if isinstance(outcome, Decision) else ""

    def _move(self, waiter: Waiter) -> None:
        """Resolve a request again whose model was removed: let it wait for the model of its name.

        It waits until its deadline, also if that model's queue is full.
        """
        try:
            resolved = self.router.current(waiter.resolved)
            if resolved.changes_body and not waiter.keeps_body:
                raise ModelChanged(resolved.model.spec.name)
            spec = resolved.model.spec.flow_control
            if spec is None:
                waiter.released(self._decided(resolved, waiter))
                return
        except Refusal as refusal:
            waiter.released(refusal)
            return
        waiter.resolve(resolved)
        waiter.homes = self.router.homes(resolved)
        flow = self.of(resolved.model.spec.name)
        group, _ = self._classes.of(flow, spec, waiter.arrival.objective)
        flow.queue.add(waiter, group)

    def _decided(self, resolved: ResolvedRequest, waiter: Waiter) -> Decision:
        """Decide a request that waited, for a model without flow control. Raises Refusal."""
        decision = self.router.decide(resolved)
        seconds = self.clock() - waiter.at
        self.listener.dispatched(decision.model, waiter.group, seconds)
        return decision._replace(wait=Wait(seconds, 0, waiter.arrival.tenant))

    def _dispatch(
        self,
        flow: ModelFlow,
        resolved: ResolvedRequest,
        arrival: Arrival,
        group: PriorityClass,
        since: float,
        now: float,
        among: frozenset[str] | None,
    ) -> Decision:
        """Decide a request and record it. Raises Refusal."""
        decision = self.router.decide(resolved, among)
        address, lease = decision.address, decision.lease
        prompts = self.room.limits.prompts
        if lease.prefill is not None:
            to_compute = lease.prefill.tokens
        else:
            to_compute = arrival.tokens * prompts.missed(address)
        prompts.sent(address, to_compute, now)
        is_first = self.room.load(address) <= 1
        self.room.steps.of(address).sent(to_compute, now, is_first=is_first)
        flow.dispatched(address, to_compute)
        flow.rate.add(now)
        group.line.tenants.dispatched(arrival.tenant, arrival.tokens)
        lease.listener = Claim(flow, self.room, self._wake, group, arrival.tenant, address)
        self.listener.dispatched(decision.model, group.name, now - since)
        return decision._replace(wait=Wait(now - since, group.priority, arrival.tenant))

    def _wake(self) -> None:
        """Call `wake`, which is set later and may be replaced."""
        self.wake()

    def _refuse(self, flow: ModelFlow, waiter: Waiter, refusal: Refusal, reason: str) -> None:
        flow.queue.remove(waiter)
        self.listener.refused(flow.model, reason)
        waiter.released(refusal)

    def _published(self, catalog: Catalog) -> None:
        """Take a new catalog: forget the endpoints that left, and dispatch to those that came."""
        models = [one for one in catalog.models.values() if one.spec.flow_control is not None]
        self.room.keep_only(e.address for one in models for e in one.snapshot.endpoints)
        if self.waiting:
            for model in models:
                self._revise(self.of(model.spec.name), model)
            self.wake()

    def _revise(self, flow: ModelFlow, model: Model) -> None:
        """Change priorities, and refuse requests for adapters that were removed.

        Without endpoints, an adapter that was found on them may come back.
        """
        spec = model.spec.flow_control
        assert spec is not None
        self._classes.revise(flow, spec)
        if not model.snapshot.endpoints:
            return
        for waiter in flow.queue.everyone():
            adapter = waiter.resolved.adapter
            if adapter and not model.has(adapter):
                flow.queue.remove(waiter)
                known = self.router.catalog.known()
                waiter.released(ModelNotFound(waiter.resolved.requested, known))
