"""What the sidecar holds at this moment, for people and for metrics."""

from __future__ import annotations

from typing import Literal, TypedDict

from extproc.core.endpoint import Endpoint
from extproc.core.router import Router
from extproc.core.signals import Signals


class SignalsState(TypedDict):
    """What an endpoint said of itself; None for what it did not say."""

    waiting: float
    running: float | None
    kv_usage: float
    max_loras: int | None
    running_adapters: list[str]
    waiting_adapters: list[str]
    loaded_adapters: list[str]
    """Those that are probably in its memory, the least recently used first."""
    block_size: int | None
    blocks: int | None
    age_seconds: float
    """Since it said what waits and how full its cache is."""
    reported_age_seconds: float | None
    """Since it said the rest."""


class EndpointState(TypedDict):
    """One endpoint of a model; `draining` has left but still finishes requests."""

    address: str
    name: str
    inflight: int
    state: Literal["ready", "draining"]
    adapters: list[str]
    signals: SignalsState | None


class ModelState(TypedDict):
    """One model; `strategy` is None once it has left the configuration."""

    strategy: str | None
    adapters: list[str]
    endpoints: list[EndpointState]


def model_states(router: Router) -> dict[str, ModelState]:
    """Every configured model, and those that left but still hold requests."""
    loads = router.ledger.loads
    states: dict[str, ModelState] = {}
    for name, model in router.catalog.models.items():
        states[name] = {
            "strategy": model.spec.load_balancing.strategy,
            "adapters": sorted({*model.spec.adapters, *model.snapshot.adapters}),
            "endpoints": [
                _endpoint(endpoint, loads.get(endpoint.address, 0), "ready", router.signals)
                for endpoint in model.snapshot.endpoints
            ],
        }
    for name, endpoint, inflight in router.ledger.held():
        state = states.setdefault(name, {"strategy": None, "adapters": [], "endpoints": []})
        if all(known["address"] != endpoint.address for known in state["endpoints"]):
            state["endpoints"].append(_endpoint(endpoint, inflight, "draining", router.signals))
    return states


def _endpoint(
    endpoint: Endpoint, inflight: int, state: Literal["ready", "draining"], signals: Signals
) -> EndpointState:
    return {
        "address": endpoint.address,
        "name": endpoint.name,
        "inflight": inflight,
        "state": state,
        "adapters": sorted(endpoint.adapters),
        "signals": _signals(endpoint.address, signals),
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
        "age_seconds": round(now - reading.at, 3),
        "reported_age_seconds": round(now - reading.reported_at, 3) if report else None,
    }
