"""The current state of models and endpoints, for `/debug/state` and for metrics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple, NotRequired, TypedDict

from extproc.core.fleet.endpoint import Endpoint
from extproc.core.fleet.fleet import Fleet
from extproc.core.fleet.signals import Signals
from extproc.core.flow_control.flow_control import FlowControl
from extproc.core.flow_control.queue import PriorityClass
from extproc.core.routing.catalog import Catalog, Model

Readiness = Literal["ready", "ejected", "draining"]
"""`ejected`: avoided after failures, or on trial after an ejection. `draining`: removed from the
model, with requests still in flight."""


class EndpointStatus(NamedTuple):
    """One endpoint of a model, with its requests in flight."""

    model: str
    endpoint: Endpoint
    inflight: int
    """This sidecar's requests."""
    readiness: Readiness


class SignalsState(TypedDict):
    """Last reading of an endpoint; None for values that it did not report."""

    waiting: float
    running: float | None
    kv_usage: float
    max_loras: int | None
    running_adapters: list[str]
    waiting_adapters: list[str]
    loaded_adapters: list[str]
    """Adapters that are probably in its memory, the least recently used first."""
    block_size: int | None
    blocks: int | None
    cache_tokens: int
    """Tokens that its caches probably keep, also outside the GPU."""
    prompt_tokens: float | None
    cached_tokens: float | None
    first_tokens: float | None
    first_token_seconds: float | None
    age_seconds: float
    """Age of the waiting requests and the cache usage."""
    reported_age_seconds: float | None
    """Age of the other values."""


class EndpointState(TypedDict):
    """One endpoint of a model."""

    address: str
    name: str
    inflight: int
    inflight_fleet: NotRequired[int]
    """The requests of all sidecars, if they share their state."""
    limit: NotRequired[float]
    """The most requests in flight that it runs well, if the model has flow control."""
    state: Readiness
    adapters: list[str]
    signals: SignalsState | None


class ClassState(TypedDict):
    """One priority class of a model's queue."""

    priority: int
    requests: int
    tenants: int
    """Tenants whose requests wait. Those without a tenant count as one."""
    oldest_seconds: float
    """Time for which its oldest request waits; 0 if none waits."""


class QueueState(TypedDict):
    """The queue of a model with flow control."""

    requests: int
    saturation: float
    """Requests in flight and in the queue over the limits of all endpoints."""
    classes: dict[str, ClassState]
    """The classes that requests have named so far."""


class ModelState(TypedDict):
    """One model; `strategy` is None after the model was removed from the configuration."""

    strategy: str | None
    adapters: list[str]
    endpoints: list[EndpointState]
    queue: NotRequired[QueueState]


def endpoint_statuses(fleet: Fleet, catalog: Catalog) -> Iterator[EndpointStatus]:
    """Yield the endpoints of every model, then removed ones with requests in flight."""
    loads, ejected = fleet.ledger.ours(), fleet.ejection.ejected
    present: set[tuple[str, str]] = set()
    for name, model in catalog.models.items():
        for endpoint in model.snapshot.endpoints:
            present.add((name, endpoint.address))
            readiness: Readiness = "ejected" if endpoint.address in ejected else "ready"
            yield EndpointStatus(name, endpoint, loads[endpoint.address], readiness)
    for name, endpoint, inflight in fleet.ledger.held():
        if (name, endpoint.address) not in present:
            yield EndpointStatus(name, endpoint, inflight, "draining")


def model_states(
    fleet: Fleet,
    catalog: Catalog,
    flow: FlowControl | None = None,
    *,
    with_fleet: bool = False,
    read: str | None = None,
) -> dict[str, ModelState]:
    """Return every configured model, and removed ones with requests in flight.

    With `with_fleet`, each endpoint also has the requests of all sidecars. `read` names the only
    model whose endpoints have signals; None for all.
    """
    states: dict[str, ModelState] = {
        name: {
            "strategy": model.spec.load_balancing.strategy,
            "adapters": sorted({*model.spec.adapters, *model.snapshot.adapters}),
            "endpoints": [],
        }
        for name, model in catalog.models.items()
    }
    for status in endpoint_statuses(fleet, catalog):
        left: ModelState = {"strategy": None, "adapters": [], "endpoints": []}
        state = states.setdefault(status.model, left)
        one = _endpoint(status, fleet.signals if read in (None, status.model) else None)
        if with_fleet:
            one["inflight_fleet"] = fleet.ledger.loads.get(one["address"], 0)
        state["endpoints"].append(one)
    for name, model in catalog.models.items():
        if flow is not None and model.spec.flow_control is not None:
            _add_queue(states[name], flow, model)
    return states


def _add_queue(state: ModelState, flow: FlowControl, model: Model) -> None:
    """Add the queue of a model with flow control, and the limits of its endpoints."""
    model_flow, room, now = flow.of(model.spec.name), flow.room, flow.clock()
    queue = model_flow.queue
    state["queue"] = {
        "requests": queue.waiting,
        "saturation": round(room.saturation(model_flow, model), 3),
        "classes": {name: _class(group, now) for name, group in queue.classes.items()},
    }
    for endpoint in state["endpoints"]:
        endpoint["limit"] = round(room.limit(model_flow, model, endpoint["address"]), 1)


def _class(group: PriorityClass, now: float) -> ClassState:
    line, oldest = group.line, group.line.oldest()
    return {
        "priority": group.priority,
        "requests": line.waiting,
        "tenants": line.tenants.waiting(),
        "oldest_seconds": 0.0 if oldest is None else round(now - oldest.at, 3),
    }


def _endpoint(status: EndpointStatus, signals: Signals | None) -> EndpointState:
    endpoint = status.endpoint
    return {
        "address": endpoint.address,
        "name": endpoint.name,
        "inflight": status.inflight,
        "state": status.readiness,
        "adapters": sorted(endpoint.adapters),
        "signals": None if signals is None else _signals(endpoint.address, signals),
    }


def _signals(address: str, signals: Signals) -> SignalsState | None:
    reading, now = signals.latest(address), signals.clock()
    if reading is None:
        return None
    report = reading.report
    return {
        "waiting": reading.load.waiting,
        "running": report.running if report else None,
        "kv_usage": reading.load.kv_usage,
        "max_loras": report.max_loras if report else None,
        "running_adapters": sorted(report.running_adapters) if report else [],
        "waiting_adapters": sorted(report.waiting_adapters) if report else [],
        "loaded_adapters": list(signals.residency.loaded(address)),
        "block_size": report.block_size if report else None,
        "blocks": report.blocks if report else None,
        "cache_tokens": int(signals.prefixes.room(address)),
        "prompt_tokens": report.prompt_tokens if report else None,
        "cached_tokens": report.cached_tokens if report else None,
        "first_tokens": report.first_tokens if report else None,
        "first_token_seconds": report.first_token_seconds if report else None,
        "age_seconds": round(now - reading.at, 3),
        "reported_age_seconds": round(now - reading.reported_at, 3) if report else None,
    }
