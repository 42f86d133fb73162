"""What the sidecar holds at this moment, for people and for metrics."""

from __future__ import annotations

from typing import Literal, TypedDict

from extproc.core.endpoint import Endpoint
from extproc.core.router import Router


class EndpointState(TypedDict):
    """One endpoint of a model; `draining` has left but still finishes requests."""

    address: str
    name: str
    inflight: int
    state: Literal["ready", "draining"]
    adapters: list[str]
    signals: None


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
            "adapters": sorted(model.spec.adapters),
            "endpoints": [
                _endpoint(endpoint, loads.get(endpoint.address, 0), "ready")
                for endpoint in model.snapshot.endpoints
            ],
        }
    for name, endpoint, inflight in router.ledger.held():
        state = states.setdefault(name, {"strategy": None, "adapters": [], "endpoints": []})
        if all(known["address"] != endpoint.address for known in state["endpoints"]):
            state["endpoints"].append(_endpoint(endpoint, inflight, "draining"))
    return states


def _endpoint(
    endpoint: Endpoint, inflight: int, state: Literal["ready", "draining"]
) -> EndpointState:
    return {
        "address": endpoint.address,
        "name": endpoint.name,
        "inflight": inflight,
        "state": state,
        "adapters": sorted(endpoint.adapters),
        "signals": None,
    }
