"""Short constructors for the objects under test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from hypothesis import settings

from extproc.core.fleet.endpoint import Endpoint, Snapshot
from extproc.core.fleet.fleet import Fleet
from extproc.core.fleet.ledger import Lease, Ledger
from extproc.core.fleet.signals import Signals
from extproc.core.request.json_document import Document
from extproc.core.request.routing_key import read_prefix
from extproc.core.routing.catalog import Catalog, Model, revise
from extproc.core.routing.router import Router
from extproc.core.schema import LoadBalancingSpec, ModelSpec, PrefixHashSpec
from extproc.core.strategies import Candidate, Query, Strategy, build
from tests.extent import extent

thorough = settings(max_examples=extent(40, 300))
brief = settings(max_examples=extent(10, 75))

TWO_ADDRESSES = ("10.0.0.1:8000", "10.0.0.2:8000")


def endpoint(name: str, *adapters: str) -> Endpoint:
    """Return an endpoint with the same address and ring name."""
    return Endpoint(name, name, frozenset(adapters))


def endpoints(count: int) -> list[Endpoint]:
    """Return endpoints with names as from discovery."""
    return [Endpoint(f"10.0.0.{i + 1}:8000", f"default/pod-{i:02}") for i in range(count)]


def model_spec(
    name: str = "llama",
    *,
    endpoints: Sequence[str] = TWO_ADDRESSES,
    aliases: Sequence[str] = (),
    adapters: Sequence[str] = (),
    strategy: str = "PrefixHash",
    **prefix_hash: object,
) -> ModelSpec:
    """Return a configured model. The keys of `prefix_hash` are in camelCase."""
    document: dict[str, Any] = {
        "name": name,
        "endpoints": list(endpoints),
        "aliases": list(aliases),
        "adapters": list(adapters),
        "loadBalancing": {"strategy": strategy, "prefixHash": prefix_hash},
    }
    return ModelSpec.model_validate(document)


def by_service(
    model: str = "llama",
    *,
    name: str = "vllm",
    adapters: Sequence[str] = (),
    strategy: str = "PrefixHash",
) -> ModelSpec:
    """Return a model whose endpoints come from a Service in the namespace `ns`."""
    service = {"namespace": "ns", "name": name, "port": "http"}
    document = {
        "name": model,
        "service": service,
        "adapters": list(adapters),
        "loadBalancing": {"strategy": strategy},
    }
    return ModelSpec.model_validate(document)


def split_spec(
    name: str = "canary", sticky_by: str = "FirstUserMessage", **weights: int
) -> ModelSpec:
    """Return a split between models, with their weights."""
    targets = [{"model": model, "weight": weight} for model, weight in weights.items()]
    return ModelSpec.model_validate(
        {"name": name, "split": {"targets": targets, "stickyBy": sticky_by}}
    )


def balancing(strategy: str, **other: object) -> LoadBalancingSpec:
    """Return load balancing settings. `Chain` gets a chain of one filter."""
    chain = {"chain": [{"filter": "LeastQueue"}]} if strategy == "Chain" else {}
    return LoadBalancingSpec.model_validate({"strategy": strategy, **chain, **other})


def strategy_of(spec: LoadBalancingSpec) -> Strategy:
    """Build the strategy with a fixed random seed."""
    return build(spec, Random(0), Signals(lambda: 0.0))


def prefix_of(
    document: Document | None,
    headers: Mapping[str, str],
    spec: PrefixHashSpec,
    *,
    cut: bool = False,
) -> str:
    """Return a request's prefix without the source of its session."""
    return read_prefix(document, headers, spec, cut=cut)[0]


def catalog(*specs: ModelSpec) -> Catalog:
    """Return the catalog of these models."""
    return revise(Catalog(), specs, strategy_of)


def router(*specs: ModelSpec) -> Router:
    """Return an idle router. Its default is one model with two endpoints."""
    fleet = Fleet()
    models = specs or (model_spec(),)
    known = revise(Catalog(), models, lambda spec: build(spec, Random(0), fleet.signals))
    return Router(fleet, known)


def without_endpoints(spec: ModelSpec) -> Catalog:
    """Return a catalog whose only model has no ready endpoint."""
    return Catalog.of([Model.of(spec, strategy_of(spec.load_balancing), [])])


class Traffic:
    """The requests in flight to one model."""

    def __init__(self, strategy: Strategy, *served_by: Endpoint, replication: int = 256) -> None:
        self.strategy = strategy
        self.snapshot = Snapshot.of(served_by, replication)
        self.ledger = Ledger()
        self._leases: dict[str, list[Lease]] = {}

    def rank(self, query: Query) -> list[Candidate]:
        """Return the current order of preference."""
        return list(self.strategy.rank(query, self.snapshot, self.ledger.loads))

    def send(self, count: int, query: Query | None = None) -> dict[str, int]:
        """Send requests that do not end, and count them by endpoint."""
        counts: Counter[str] = Counter()
        for _ in range(count):
            order = self.strategy.rank(query or Query(), self.snapshot, self.ledger.loads)
            chosen = next(order).endpoint
            self._leases.setdefault(chosen.name, []).append(self.ledger.acquire("m", chosen))
            counts[chosen.name] += 1
        return dict(counts)

    def load(self, counts: dict[str, int]) -> None:
        """Put requests on endpoints by name, without the strategy."""
        for chosen in self.snapshot.endpoints:
            for _ in range(counts.get(chosen.name, 0)):
                self._leases.setdefault(chosen.name, []).append(self.ledger.acquire("m", chosen))

    def finish(self, name: str, count: int) -> None:
        """End requests on an endpoint."""
        for _ in range(count):
            self._leases[name].pop().release()

    def finish_all(self) -> None:
        """End all requests."""
        for name, leases in self._leases.items():
            self.finish(name, len(leases))
