"""The rings that a change of endpoints needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from extproc.core.fleet.endpoint import Endpoint
from extproc.core.routing.catalog import Catalog, Model
from extproc.core.schema import Source


def changed_nodes(catalog: Catalog, source: Source, endpoints: Sequence[Endpoint]) -> int:
    """Return the number of virtual nodes that these endpoints of a source would change."""
    names = {endpoint.name for endpoint in endpoints}
    return sum(
        len(names ^ {endpoint.name for endpoint in model.snapshot.endpoints})
        * model.spec.load_balancing.prefix_hash.replication
        for model in catalog.models.values()
        if model.spec.source == source
    )


def with_rings_of(catalog: Catalog, other: Catalog, source: Source) -> Catalog:
    """Return the catalog with another one's endpoints for the models of a source.

    A model whose configuration differs keeps its endpoints.
    """

    def merged(model: Model) -> Model:
        found = other.models.get(model.spec.name)
        if model.spec.source != source or found is None or found.spec != model.spec:
            return model
        return replace(model, snapshot=found.snapshot)

    models = (merged(model) for model in catalog.models.values())
    return Catalog.of(models, catalog.splits, catalog.found)
