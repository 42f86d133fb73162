"""The catalog: an immutable set of all models, with their strategies and endpoints.

Configuration and discovery publish a new catalog by replacing one reference, so a decision never
sees half of a change.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from extproc.core.fleet.endpoint import Endpoint, Snapshot
from extproc.core.fleet.ring import Pause, no_pause
from extproc.core.request.refusals import ModelNotFound
from extproc.core.routing.split import Split
from extproc.core.schema import MAX_NAME_LENGTH, LoadBalancingSpec, ModelSpec, Source
from extproc.core.strategies import Strategy

Adapters = Mapping[str, frozenset[str]]
"""LoRA adapters by the address of their endpoint."""

# KubeAI writes model and adapter as one name with this separator.
_ADAPTER_SEPARATOR = "_"


@dataclass(frozen=True)
class Model:
    """A model with its strategy and its ready endpoints."""

    spec: ModelSpec
    strategy: Strategy
    snapshot: Snapshot

    @property
    def discovers_adapters(self) -> bool:
        """True if the sidecar reads the adapters from the endpoints."""
        wanted = self.spec.discover_adapters
        return self.strategy.reads_signals if wanted is None else wanted

    def has(self, adapter: str) -> bool:
        """Return True if the model has this adapter, configured or found."""
        return adapter in self.spec.adapters or adapter in self.snapshot.adapters

    @property
    def is_scraped(self) -> bool:
        """True if the sidecar reads anything from the endpoints."""
        return self.reads_metrics or self.discovers_adapters

    @property
    def reads_metrics(self) -> bool:
        """True if the strategy or flow control uses the endpoints' metrics."""
        learns = self.spec.flow_control is not None and self.spec.flow_control.max_inflight is None
        return self.strategy.reads_signals or learns

    @classmethod
    def of(
        cls,
        spec: ModelSpec,
        strategy: Strategy,
        endpoints: Iterable[Endpoint],
        previous: Model | None = None,
        pause: Pause = no_pause,
    ) -> Model:
        """Return a model with these ready endpoints; `previous` is the one that it replaces."""
        replication = spec.load_balancing.prefix_hash.replication
        before = previous.snapshot if previous else None
        snapshot = Snapshot.of(endpoints, replication, before, pause)
        return cls(spec, strategy, snapshot)

    def at(self, endpoints: Iterable[Endpoint], found: Adapters, pause: Pause = no_pause) -> Model:
        """Return the same model with other ready endpoints, or with other adapters on them."""
        serving = self._serving(endpoints, found)
        return Model.of(self.spec, self.strategy, serving, self, pause)

    def staying(self, endpoints: Iterable[Endpoint], found: Adapters) -> Model:
        """Return the same model with those of these endpoints that are on its ring already."""
        snapshot = self.snapshot.only(self._serving(endpoints, found))
        return self if snapshot is self.snapshot else replace(self, snapshot=snapshot)

    def _serving(self, endpoints: Iterable[Endpoint], found: Adapters) -> Iterator[Endpoint]:
        extra = found if self.discovers_adapters else {}
        return _serving(self.spec.adapters, endpoints, extra)


@dataclass(frozen=True)
class Catalog:
    """All models and the names that requests can use for them."""

    models: Mapping[str, Model] = field(default_factory=dict)
    splits: Mapping[str, Split] = field(default_factory=dict)
    """Splits by each of their names."""
    found: Adapters = field(default_factory=dict)
    """The adapters that the sidecar found on endpoints."""
    _names: Mapping[str, tuple[str, str]] = field(default_factory=dict, repr=False)
    """The model and adapter of each configured name."""
    _found_names: Mapping[str, tuple[str, str]] = field(default_factory=dict, repr=False)
    """The model and adapter of each name that only endpoints have for an adapter."""
    key_headers: frozenset[str] = frozenset()
    """The request headers that keys, priority classes and tenants are read from."""
    key_fields: frozenset[str] = frozenset()
    """The fields of bodies, other than prompts, that keys are read from."""

    @classmethod
    def of(
        cls,
        models: Iterable[Model],
        splits: Mapping[str, Split] = MappingProxyType({}),
        found: Adapters = MappingProxyType({}),
    ) -> Catalog:
        """Return a catalog of these models and splits, whose names must be distinct."""
        by_name = {model.spec.name: model for model in models}
        keys = [model.spec.load_balancing.prefix_hash for model in by_name.values()]
        keys += [split.key for split in splits.values()]
        flows = [m.spec.flow_control for m in by_name.values() if m.spec.flow_control is not None]
        headers = frozenset(header for key in keys for header in key.headers)
        headers = headers.union(*(flow.headers for flow in flows))
        fields = frozenset(field for key in keys for field in key.fields)
        names = _names(by_name)
        found_names = _found_names(by_name, {*names, *splits})
        return cls(by_name, splits, found, names, found_names, headers, fields)

    def resolve(self, name: str) -> tuple[Model, str]:
        """Return the model and adapter that a model name means.

        The name may be a model, an alias or an adapter; else KubeAI's form MODEL_ADAPTER, where
        ADAPTER may be empty; else an adapter that an endpoint has. Raises ModelNotFound, also for
        the name of a split.
        """
        found = self._resolved(name)
        if found is None:
            raise ModelNotFound(name, self.known())
        return self.models[found[0]], found[1]

    def names(self, name: str) -> bool:
        """Return True if requests can use this name for a model."""
        return self._resolved(name) is not None

    def known(self) -> list[str]:
        """Return all names that requests can use, sorted."""
        return sorted([*self._names, *self._found_names, *self.splits])

    def only(self) -> Model | None:
        """Return the model if only one is configured."""
        return next(iter(self.models.values())) if len(self.models) == 1 else None

    def default(self) -> str | None:
        """Return the model of requests without a name: the only one, if there is no split."""
        only = None if self.splits else self.only()
        return only.spec.name if only else None

    def snapshots(self) -> dict[str, Snapshot]:
        """Return the ready endpoints of each model."""
        return {name: model.snapshot for name, model in self.models.items()}

    def rediscovered(
        self, source: Source, endpoints: Sequence[Endpoint], pause: Pause = no_pause
    ) -> Catalog:
        """Return the catalog with these endpoints for the models of a source."""
        models = (
            model.at(endpoints, self.found, pause) if model.spec.source == source else model
            for model in self.models.values()
        )
        return Catalog.of(models, self.splits, self.found)

    def staying(self, source: Source, endpoints: Sequence[Endpoint]) -> Catalog:
        """Return the catalog with those of these endpoints of a source that are on its rings.

        Those that left are no longer chosen. New ones need `rediscovered`, which takes longer.
        """
        models = [
            model.staying(endpoints, self.found) if model.spec.source == source else model
            for model in self.models.values()
        ]
        if all(map(operator.is_, models, self.models.values())):
            return self
        return Catalog.of(models, self.splits, self.found)

    def with_adapters(self, found: Adapters) -> Catalog:
        """Return the catalog with these adapters in addition to the configured ones."""
        models = (
            model.at(model.snapshot.endpoints, found) if model.discovers_adapters else model
            for model in self.models.values()
        )
        return Catalog.of(models, self.splits, found)

    def names_in_order(self) -> Iterator[str]:
        """Yield the models, aliases and adapters, in the configuration's order, then splits."""
        yield from self._names
        yield from self._found_names
        yield from self.splits

    def _resolved(self, name: str) -> tuple[str, str] | None:
        return self._names.get(name) or self._model_and_adapter(name) or self._found_names.get(name)

    def _model_and_adapter(self, name: str) -> tuple[str, str] | None:
        if len(name) > 2 * MAX_NAME_LENGTH + 1:
            return None  # a long name with many separators would take too much time
        position = name.find(_ADAPTER_SEPARATOR)
        while position > 0:
            model, of_adapter = self._names.get(name[:position], ("", ""))
            adapter = name[position + 1 :]
            if model and not of_adapter and (not adapter or self.models[model].has(adapter)):
                return model, adapter
            position = name.find(_ADAPTER_SEPARATOR, position + 1)
        return None


def revise(
    previous: Catalog,
    specs: Iterable[ModelSpec],
    build: Callable[[LoadBalancingSpec], Strategy],
    discovered: Callable[[Source], Iterable[Endpoint]] = lambda _: (),
    pause: Pause = no_pause,
) -> Catalog:
    """Return the catalog of a new configuration; `discovered` returns the endpoints of a source.

    A model whose load balancing did not change keeps its strategy object and that object's state.
    """
    models: list[Model] = []
    splits: dict[str, Split] = {}
    for spec in specs:
        if spec.split is not None:
            split = Split(spec.name, spec.split, answer_as_requested=spec.answer_as_requested)
            splits.update(dict.fromkeys((spec.name, *spec.aliases), split))
            continue
        before = previous.models.get(spec.name)
        snapshot = before.snapshot if before is not None else Snapshot.of(())
        base = Model(spec, _strategy(before, spec.load_balancing, build), snapshot)
        models.append(base.at(_endpoints(spec, discovered), previous.found, pause))
    return Catalog.of(models, splits, previous.found)


def _strategy(
    before: Model | None,
    spec: LoadBalancingSpec,
    build: Callable[[LoadBalancingSpec], Strategy],
) -> Strategy:
    if before is not None and before.spec.load_balancing == spec:
        return before.strategy
    return build(spec)


def _endpoints(
    spec: ModelSpec, discovered: Callable[[Source], Iterable[Endpoint]]
) -> Iterable[Endpoint]:
    if spec.source is not None:
        return discovered(spec.source)
    return (Endpoint(address, address) for address in spec.endpoints or ())


def _serving(
    configured: Iterable[str], endpoints: Iterable[Endpoint], found: Adapters
) -> Iterator[Endpoint]:
    """Yield the endpoints with the adapters of this model."""
    everywhere = frozenset(configured)
    for endpoint in endpoints:
        adapters = everywhere | found.get(endpoint.address, frozenset())
        same = adapters == endpoint.adapters
        yield endpoint if same else Endpoint(endpoint.address, endpoint.name, adapters)


def _names(models: Mapping[str, Model]) -> dict[str, tuple[str, str]]:
    names: dict[str, tuple[str, str]] = {}
    for name, model in models.items():
        names.update(dict.fromkeys((name, *model.spec.aliases), (name, "")))
        names.update({adapter: (name, adapter) for adapter in model.spec.adapters})
    return names


def _found_names(models: Mapping[str, Model], taken: Set[str]) -> dict[str, tuple[str, str]]:
    """Return the found adapters by name; the first model of the document gets a shared name."""
    names: dict[str, tuple[str, str]] = {}
    for name, model in models.items():
        for adapter in sorted(set(model.snapshot.adapters) - taken):
            names.setdefault(adapter, (name, adapter))
    return names
