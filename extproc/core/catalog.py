"""The catalog: every configured model with its strategy and its endpoints, immutable.

Configuration and discovery publish a new catalog by swapping one reference, so
a decision never sees half of a change.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from extproc.core.endpoint import Endpoint, Snapshot
from extproc.core.errors import ModelNotFound
from extproc.core.spec import LoadBalancingSpec, ModelSpec, Source
from extproc.core.strategies import Strategy

# KubeAI joins model and adapter with this in one name.
_ADAPTER_SEPARATOR = "_"


@dataclass(frozen=True)
class Model:
    """A model as it is served now."""

    spec: ModelSpec
    strategy: Strategy
    snapshot: Snapshot

    @classmethod
    def of(
        cls,
        spec: ModelSpec,
        strategy: Strategy,
        endpoints: Iterable[Endpoint],
        previous: Model | None = None,
    ) -> Model:
        """The model with these ready endpoints; `previous` is what it replaces."""
        replication = spec.load_balancing.prefix_hash.replication
        snapshot = Snapshot.of(endpoints, replication, previous.snapshot if previous else None)
        return cls(spec, strategy, snapshot)

    def at(self, endpoints: Iterable[Endpoint]) -> Model:
        """The same model with other ready endpoints."""
        return Model.of(self.spec, self.strategy, _serving(self.spec, endpoints), self)


@dataclass(frozen=True)
class Catalog:
    """All models, and the names by which requests may call them."""

    models: Mapping[str, Model] = field(default_factory=dict)
    _names: Mapping[str, tuple[str, str]] = field(default_factory=dict, repr=False)
    key_headers: frozenset[str] = frozenset()
    """The request headers that some model reads its key from."""

    @classmethod
    def of(cls, models: Iterable[Model]) -> Catalog:
        """The catalog of these models, whose names must be distinct."""
        by_name = {model.spec.name: model for model in models}
        names: dict[str, tuple[str, str]] = {}
        for name, model in by_name.items():
            names.update(dict.fromkeys((name, *model.spec.aliases), (name, "")))
            names.update({adapter: (name, adapter) for adapter in model.spec.adapters})
        headers = (m.spec.load_balancing.prefix_hash.header for m in by_name.values())
        return cls(by_name, names, frozenset(header for header in headers if header))

    def resolve(self, name: str) -> tuple[Model, str]:
        """The model and adapter that a request's model name means.

        A model, an alias or an adapter by its own name; else KubeAI's form
        MODEL_ADAPTER. Raises ModelNotFound.
        """
        found = self._names.get(name) or self._split(name)
        if found is None:
            raise ModelNotFound(name, sorted(self._names))
        return self.models[found[0]], found[1]

    def names(self, name: str) -> bool:
        """Whether requests may use this name."""
        return name in self._names or self._split(name) is not None

    def only(self) -> Model | None:
        """The model, where there is but one."""
        return next(iter(self.models.values())) if len(self.models) == 1 else None

    def rediscovered(self, source: Source, endpoints: Sequence[Endpoint]) -> Catalog:
        """The catalog in which the models of a source have these endpoints."""
        models = {
            name: model.at(endpoints) if model.spec.source == source else model
            for name, model in self.models.items()
        }
        return replace(self, models=models)

    def listing(self) -> bytes:
        """The answer to `GET /v1/models`, in OpenAI's list form; adapters name their parent."""
        entries = []
        for name, (model, adapter) in self._names.items():
            entry = {"id": name, "object": "model", "created": 0, "owned_by": "extproc"}
            entries.append({**entry, "parent": model} if adapter else entry)
        return json.dumps({"object": "list", "data": entries}).encode()

    def _split(self, name: str) -> tuple[str, str] | None:
        position = name.find(_ADAPTER_SEPARATOR)
        while position > 0:
            base = self._names.get(name[:position])
            adapter = name[position + 1 :]
            if base is not None and self._names.get(adapter) == (base[0], adapter):
                return base[0], adapter
            position = name.find(_ADAPTER_SEPARATOR, position + 1)
        return None


def revise(
    previous: Catalog,
    specs: Iterable[ModelSpec],
    build: Callable[[LoadBalancingSpec], Strategy],
    discovered: Callable[[Source], Iterable[Endpoint]] = lambda _: (),
) -> Catalog:
    """The catalog of a new configuration; `discovered` says what is known of a source.

    A model whose load balancing did not change keeps its strategy object, and
    with it the strategy's memory.
    """
    return Catalog.of(
        _revised(previous.models.get(spec.name), spec, build, _endpoints(spec, discovered))
        for spec in specs
    )


def _revised(
    before: Model | None,
    spec: ModelSpec,
    build: Callable[[LoadBalancingSpec], Strategy],
    endpoints: Iterable[Endpoint],
) -> Model:
    if before is not None and before.spec.load_balancing == spec.load_balancing:
        return Model.of(spec, before.strategy, endpoints, before)
    return Model.of(spec, build(spec.load_balancing), endpoints, before)


def _endpoints(
    spec: ModelSpec, discovered: Callable[[Source], Iterable[Endpoint]]
) -> Iterator[Endpoint]:
    if spec.source is not None:
        return _serving(spec, discovered(spec.source))
    return _serving(spec, (Endpoint(address, address) for address in spec.endpoints or ()))


def _serving(spec: ModelSpec, endpoints: Iterable[Endpoint]) -> Iterator[Endpoint]:
    """The endpoints with the adapters that this model has on each of them."""
    adapters = frozenset(spec.adapters)
    for endpoint in endpoints:
        yield Endpoint(endpoint.address, endpoint.name, adapters)
